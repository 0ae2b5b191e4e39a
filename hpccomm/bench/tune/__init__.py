"""What measurements say about a cluster."""
