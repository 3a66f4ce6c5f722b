"""Observers of traffic: each reports what the kernel counted or traced meanwhile."""
