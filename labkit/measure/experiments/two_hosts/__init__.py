"""Experiments with the clients on one host and the servers on another."""
