"""What a datapath costs a request, a connection and an HTTP request."""
