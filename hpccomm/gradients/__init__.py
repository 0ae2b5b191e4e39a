"""Synchronise the gradients of a training loop over ranks.

>>> sync = hpccomm.gradients.GradientSync(comm, parameters)      # doctest: +SKIP
>>> for batch in batches:                                        # doctest: +SKIP
...     sync.sync(gradients_of(batch))

- `parameters`: the model as data. `layout`: which gradient lies in which bucket; pure functions. `arrays`: host and device.
- `meaning`: what a reduction does. `agreement`: whether all ranks have the same model and settings.
- `settling`: missing gradients, NaN and infinities. `consistency`: whether arrays are the same on all ranks.
- `flat`: a bucket's memory; `written`: whether it was written to. `step`: the gradients of one layout, and one step on them.
- `ways`: how a bucket is reduced. `reducer`: in which order and thread; `worker`: the thread.
- `compression`: how to send less. `loss_scale`: a factor for the loss.
- `sharded`: an optimiser whose state is divided among the ranks; `shards`: a bucket of it; `updates`: its rules.
- `local_steps`: ranks that train on their own, and average now and then.
- `adaptive`: which size of buckets would end a step soonest; pure functions. `warm_up`: what is measured for it.
- `model`: the model that all ranks agreed on. `reduced`: the end of a step. `sync`: what users call.
- `statistics`: what it cost. `record`: how that is counted. `log`: how it is written down.
"""

from hpccomm.gradients.adaptive import Choice
from hpccomm.gradients.compression import (
    Channel,
    Compressor,
    Exchange,
    Int8,
    MixedPrecision,
    PowerSGD,
    Sign,
    Threshold,
    TopK,
)
from hpccomm.gradients.layout import Bucket, BucketSettings, layout
from hpccomm.gradients.local_steps import LocalStatistics, LocalSteps
from hpccomm.gradients.loss_scale import LossScale
from hpccomm.gradients.meaning import Meaning
from hpccomm.gradients.parameters import Parameter
from hpccomm.gradients.sharded import ShardedOptimizer
from hpccomm.gradients.statistics import BucketStatistics, Statistics
from hpccomm.gradients.sync import GradientSync
from hpccomm.gradients.updates import Update, adam, sgd

__all__ = [
    "Bucket",
    "BucketSettings",
    "BucketStatistics",
    "Channel",
    "Choice",
    "Compressor",
    "Exchange",
    "GradientSync",
    "Int8",
    "LocalStatistics",
    "LocalSteps",
    "LossScale",
    "Meaning",
    "MixedPrecision",
    "Parameter",
    "PowerSGD",
    "ShardedOptimizer",
    "Sign",
    "Statistics",
    "Threshold",
    "TopK",
    "Update",
    "adam",
    "layout",
    "sgd",
]
