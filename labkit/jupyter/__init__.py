"""Notebook kernels on this machine and in a lab VM, and the widgets of notebooks."""
