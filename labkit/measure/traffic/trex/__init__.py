"""TRex: its client in a process of its own, what its counters mean, and a server that labkit starts itself."""
