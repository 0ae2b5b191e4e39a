"""Arrays as the library sees them: views, device memory, memory that ranks of a node share."""
