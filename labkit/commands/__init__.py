"""Code that only the command line uses."""
