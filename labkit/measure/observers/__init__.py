"""Observers stand around traffic and tell what the kernel counted meanwhile."""
