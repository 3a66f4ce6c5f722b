"""Guests: virtual machines as endpoints."""
