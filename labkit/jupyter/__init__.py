"""Notebook kernels: here, and in a lab VM."""
