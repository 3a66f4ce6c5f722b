"""Packets of an interface through a mapped ring, and the process that writes those of several rings to a file."""
