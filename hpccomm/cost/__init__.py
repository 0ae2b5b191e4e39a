"""What a collective costs on a described network."""
