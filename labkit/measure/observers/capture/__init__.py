"""Packet capture at any set of interfaces."""
