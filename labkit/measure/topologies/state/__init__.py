"""What the kernel reports about a topology that has been built."""
