"""Arrays as hpccomm sees them: views, folding, device memory, memory that ranks of a node share."""
