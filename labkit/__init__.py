"""labkit: which Linux virtual-network datapath is faster, by how much, and why."""

__version__ = "0.1.0"
