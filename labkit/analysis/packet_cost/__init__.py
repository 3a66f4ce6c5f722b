"""What a packet costs: fixed, by the byte, and by function."""
