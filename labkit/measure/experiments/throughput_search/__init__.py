"""The experiment `throughput`: a search for the rate at which a datapath begins to lose packets."""
