"""Benchmarks of labkit's own speed promises, each beside a reference measured in the same run: `make bench`."""
