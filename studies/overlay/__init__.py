"""The experiment overlay: packet paths, reachability, spine failure, header overhead."""
