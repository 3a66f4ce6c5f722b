"""What the command line needs and nothing else does."""
