"""Gradient compression: compressors that send less than the gradients themselves.

- `contract`: the interface of a compressor, also of a user's own, and its exchange with other
  ranks.
- `mixed_precision`: narrow floats. `sparse`: the largest elements. `power_sgd`: thin matrices.

`GradientSync` takes one as ``compressor=``; `hpccomm.gradients.reducer` runs it.
"""

from hpccomm.gradients.compression.contract import Channel, Compressor, Exchange
from hpccomm.gradients.compression.mixed_precision import MixedPrecision
from hpccomm.gradients.compression.power_sgd import PowerSGD
from hpccomm.gradients.compression.sparse import TopK

__all__ = [
    "Channel",
    "Compressor",
    "Exchange",
    "MixedPrecision",
    "PowerSGD",
    "TopK",
]
