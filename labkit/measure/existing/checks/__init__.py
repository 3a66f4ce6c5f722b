"""Which known causes of a slow or broken path are present between two existing ends."""
