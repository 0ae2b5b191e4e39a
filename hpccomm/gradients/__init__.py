"""Synchronise the gradients of a training loop over ranks.

>>> sync = hpccomm.gradients.GradientSync(comm, parameters)      # doctest: +SKIP
>>> for batch in batches:                                        # doctest: +SKIP
...     sync.sync(gradients_of(batch))

- `parameters`: the model as data. `settings`: what a reduction does, and the factor of the loss. `layout`: which gradient lies
  in which bucket, and the memory of one.
- `agreement`: whether all ranks have the same model, settings and arrays; what they agreed on.
- `group`: the ranks that train together, and the interface of a compressor. `arrays`: host and device. `checks`: settings that do not fit.
- `buckets`: the gradients of one layout, and whether they were written to.
- `reducer`: how a bucket is reduced, in which order and thread.
- `compression`: how to send less.
- `steps`: the course of a step, and missing gradients, NaN and infinities. `sync`: what users call.
- `adaptive`: which size of buckets would end a step soonest, and what is measured for it.
- `record`: what it cost, and how that is written down.
- `sharded`: an optimiser whose state is divided among the ranks; `shards`: a bucket of it; `updates`: its rules.
- `local_steps`: ranks that train on their own, and average now and then.
"""

from hpccomm.gradients.adaptive import BucketChoice
from hpccomm.gradients.compression import MixedPrecision, PowerSGD, TopK
from hpccomm.gradients.group import Channel, Compressor, Exchange
from hpccomm.gradients.layout import LossScale, ReductionSettings, layout
from hpccomm.gradients.local_steps import LocalStatistics, LocalSteps
from hpccomm.gradients.parameters import Bucket, Parameter, Update, adam, sgd
from hpccomm.gradients.record import BucketStatistics, Statistics
from hpccomm.gradients.sharded import ShardedOptimizer
from hpccomm.gradients.sync import GradientSync

__all__ = [
    "Bucket",
    "BucketChoice",
    "BucketStatistics",
    "Channel",
    "Compressor",
    "Exchange",
    "GradientSync",
    "LocalStatistics",
    "LocalSteps",
    "LossScale",
    "MixedPrecision",
    "Parameter",
    "PowerSGD",
    "ReductionSettings",
    "ShardedOptimizer",
    "Statistics",
    "TopK",
    "Update",
    "adam",
    "layout",
    "sgd",
]
