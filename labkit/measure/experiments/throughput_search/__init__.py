"""The experiment `throughput`: the rate at which a datapath begins to lose packets, searched for."""
