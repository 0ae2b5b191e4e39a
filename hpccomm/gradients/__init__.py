"""Synchronise the gradients of a training loop over ranks.

>>> sync = hpccomm.gradients.GradientSync(comm, parameters)      # doctest: +SKIP
>>> for batch in batches:                                        # doctest: +SKIP
...     sync.sync(gradients_of(batch))

A gradient becomes ready, is reduced with its bucket, is checked, and is handed back.

- `parameters`: the model as data, and its arrays on host or device. `agreement`: the ranks that train together, and
  comparisons of their models and arrays. `settings`: the settings of reductions, and the factor of the loss.
- `layout`: which gradient lies in which bucket, and the memory of buckets.
- `sync`: `GradientSync`, and the course of a step. `buckets`: the gradients of one layout, whether they were written, how
  each bucket is reduced, and whether results are missing or not finite. `reducer`: the order and the thread of reductions.
- `compression`: compressors, which send less. `adaptive`: the size of buckets that ends a step soonest. `record`: the cost
  of steps, and their log.
- `sharded`: an optimiser whose state is divided among the ranks. `local_steps`: ranks that train on their own, and average
  at regular intervals. `updates`: the update rules of both.
"""

from hpccomm.gradients.adaptive import BucketChoice as BucketChoice
from hpccomm.gradients.compression import Channel as Channel
from hpccomm.gradients.compression import Compressor as Compressor
from hpccomm.gradients.compression import Exchange as Exchange
from hpccomm.gradients.compression import MixedPrecision as MixedPrecision
from hpccomm.gradients.compression import PowerSGD as PowerSGD
from hpccomm.gradients.compression import TopK as TopK
from hpccomm.gradients.layout import layout as layout
from hpccomm.gradients.local_steps import LocalStatistics as LocalStatistics
from hpccomm.gradients.local_steps import LocalSteps as LocalSteps
from hpccomm.gradients.parameters import Bucket as Bucket
from hpccomm.gradients.parameters import Parameter as Parameter
from hpccomm.gradients.record import BucketStatistics as BucketStatistics
from hpccomm.gradients.record import Statistics as Statistics
from hpccomm.gradients.settings import LossScale as LossScale
from hpccomm.gradients.settings import ReductionSettings as ReductionSettings
from hpccomm.gradients.sharded import ShardedOptimizer as ShardedOptimizer
from hpccomm.gradients.sync import GradientSync as GradientSync
from hpccomm.gradients.updates import Update as Update
from hpccomm.gradients.updates import adam as adam
from hpccomm.gradients.updates import sgd as sgd
