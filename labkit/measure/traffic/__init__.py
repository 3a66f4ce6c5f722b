"""Real traffic between the two ends of pairs: iperf3 (TCP, UDP) and ping."""
