"""Models of the cost of a packet: fixed cost, cost per byte, and time per kernel function."""
