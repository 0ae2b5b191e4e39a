"""Synchronise the gradients of a training loop over ranks.

>>> sync = hpccomm.gradients.GradientSync(comm, parameters)      # doctest: +SKIP
>>> for batch in batches:                                        # doctest: +SKIP
...     sync.sync(gradients_of(batch))

A gradient goes one way: ready, reduced with its bucket, checked and handed back.

- `parameters`: the model as data, and its arrays on host or device. `agreement`: the ranks that train together, and whether
  all of them have the same model and arrays. `settings`: what a reduction does, and the factor of the loss.
- `layout`: which gradient lies in which bucket, and the memory of one.
- `sync`: `GradientSync`, and the course of a step. `buckets`: the gradients of one layout, whether they were written to, and
  whether results are missing or not finite. `reducer`: how a bucket is reduced, in which order and thread.
- `compression`: how to send less. `adaptive`: which size of buckets ends a step soonest. `record`: what steps cost, and their log.
- `sharded`: an optimiser whose state is divided among the ranks. `local_steps`: ranks that train on their own, and average
  now and then. `updates`: the update rules of both.
"""

from hpccomm.gradients.adaptive import BucketChoice
from hpccomm.gradients.compression import (
    Channel,
    Compressor,
    Exchange,
    MixedPrecision,
    PowerSGD,
    TopK,
)
from hpccomm.gradients.layout import layout
from hpccomm.gradients.local_steps import LocalStatistics, LocalSteps
from hpccomm.gradients.parameters import Bucket, Parameter
from hpccomm.gradients.record import BucketStatistics, Statistics
from hpccomm.gradients.settings import LossScale, ReductionSettings
from hpccomm.gradients.sharded import ShardedOptimizer
from hpccomm.gradients.sync import GradientSync
from hpccomm.gradients.updates import Update, adam, sgd

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
