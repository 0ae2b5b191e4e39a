"""Synchronise the gradients of a training loop over ranks.

>>> sync = hpccomm.gradients.GradientSync(comm, parameters)      # doctest: +SKIP
>>> for batch in batches:                                        # doctest: +SKIP
...     sync.sync(gradients_of(batch))

- `parameters`: the model as data. `layout`: which gradient lies in which bucket; pure functions.
- `meaning`: what a reduction does. `agreement`: whether all ranks have the same model and settings.
- `settling`: missing gradients, NaN and infinities. `consistency`: whether arrays are the same on all ranks.
- `flat`: a bucket's memory. `step`: the gradients of one layout, and one step on them.
- `sharded`: an optimiser whose state is divided among the ranks; `shards`: a bucket of it; `updates`: its rules.
- `local_steps`: ranks that train on their own, and average now and then.
- `adaptive`: which size of buckets would end a step soonest; pure functions.
- `model`: the model that all ranks agreed on. `sync`: what users call. `statistics`: what it cost.
"""

from hpccomm.gradients.layout import Bucket, BucketSettings, layout
from hpccomm.gradients.local_steps import LocalStatistics, LocalSteps
from hpccomm.gradients.meaning import Meaning
from hpccomm.gradients.parameters import Parameter
from hpccomm.gradients.sharded import ShardedOptimizer
from hpccomm.gradients.statistics import Statistics
from hpccomm.gradients.sync import GradientSync
from hpccomm.gradients.updates import Update, adam, sgd

__all__ = [
    "Bucket",
    "BucketSettings",
    "GradientSync",
    "LocalStatistics",
    "LocalSteps",
    "Meaning",
    "Parameter",
    "ShardedOptimizer",
    "Statistics",
    "Update",
    "adam",
    "layout",
    "sgd",
]
