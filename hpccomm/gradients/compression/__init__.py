"""Ways to send less than the gradients themselves.

- `contract`: what a compressor is, also a user's own.
"""

from hpccomm.gradients.compression.contract import Channel, Compressor, Exchange

__all__ = ["Channel", "Compressor", "Exchange"]
