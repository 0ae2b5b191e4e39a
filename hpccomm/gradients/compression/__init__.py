"""Ways to send less than the gradients themselves.

- `contract`: what a compressor is, also a user's own, and what it may send.
- `quantized`: fewer bits an element. `sparse`: the largest elements. `power_sgd`: thin matrices.
"""

from hpccomm.gradients.compression.contract import Channel, Compressor, Exchange
from hpccomm.gradients.compression.power_sgd import PowerSGD
from hpccomm.gradients.compression.quantized import Int8, MixedPrecision, Sign
from hpccomm.gradients.compression.sparse import Threshold, TopK

__all__ = [
    "Channel",
    "Compressor",
    "Exchange",
    "Int8",
    "MixedPrecision",
    "PowerSGD",
    "Sign",
    "Threshold",
    "TopK",
]
