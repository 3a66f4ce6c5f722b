"""What the kernel counts, and where packets are lost."""
