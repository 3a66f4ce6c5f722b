"""The processes that carry out one request on a host."""
