"""A part of torch.compile."""
