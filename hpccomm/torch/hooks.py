"""Compressed gradients for DistributedDataParallel: hpccomm's compressors as a communication hook."""

from collections.abc import Callable
from itertools import accumulate
from math import prod
from typing import Any

from torch import Tensor
from torch.distributed import GradBucket
from torch.futures import Future

from hpccomm.errors import UsageError
from hpccomm.gradients import Bucket, Channel, Compressor, Exchange, Parameter, reducer
from hpccomm.gradients.agreement import RankGroup
from hpccomm.gradients.layout import scale
from hpccomm.gradients.reducer import Worker
from hpccomm.runtime.recorder import entered
from hpccomm.torch.group import duplicate
from hpccomm.torch.registration import untraced
from hpccomm.torch.tensors import array
from hpccomm.torch.work import WAITING


def ddp_comm_hook(compressor: Compressor) -> Callable[[Any, Any], Any]:
    """Return a hook for ``DistributedDataParallel.register_comm_hook``, which reduces gradients compressed.

    ``model.register_comm_hook(group, hook)``: the state is the process group, or None for the default one. Gradients
    are averaged, in a thread of the hook's own and over a communicator of its own, while the backward pass goes on.
    What a compressor keeps belongs to the hook, so each model takes one of its own. The first call is collective over
    the group.

    Parameters
    ----------
    compressor : Compressor
        Of ``hpccomm.gradients``, or the user's own; equal on all ranks. Gradients lie in host memory.
    """
    return CompressedBuckets(compressor).start


@untraced
class CompressedBuckets:
    """Reduces the buckets of one model.

    Parameters
    ----------
    compressor : Compressor
        Equal on all ranks.
    """

    def __init__(self, compressor: Compressor) -> None:
        self._compressor = compressor
        self._exchange: Exchange | None = None
        self._worker: Worker | None = None
        self._channels: dict[Bucket, Channel] = {}

    # DistributedDataParallel reads these annotations.
    def start(self, state: Any, bucket: GradBucket) -> Future[Tensor]:
        """Begin to reduce a bucket; return a future of its tensor."""
        if not bucket.buffer().is_cpu:
            raise UsageError(
                "gradients are on a device, and the hook takes those in host memory; for a device take the hooks of "
                "torch.distributed.algorithms"
            )
        entered(file=reducer.__file__)
        if self._worker is None:
            comm = duplicate(state)
            self._exchange, self._worker = Exchange(RankGroup(comm, None)), Worker(comm.abort)
        parts, tensor = described(bucket), bucket.buffer()
        begun: Any = Future()
        # PyTorch calls it in the thread that completes the first one. What it raises is an error of the future.
        reduced = begun.then(lambda _: self._reduce(parts, tensor))
        if not self._worker.submit(lambda: begun.set_result(None)):
            begun.set_result(None)
        return reduced

    def _reduce(self, bucket: Bucket, tensor: Any) -> Any:
        exchange = self._exchange
        assert exchange is not None
        with WAITING:
            if bucket not in self._channels:
                # After the first step, DistributedDataParallel makes its buckets anew, and never comes back to the old.
                kept = {each: x for each, x in self._channels.items() if each.index != bucket.index}
                self._channels = kept | {bucket: self._compressor.channel(bucket)}
            x = array(tensor, reduced=True)
            self._channels[bucket].reduce(x, exchange)
        scale(x, 1 / exchange.size)
        return tensor


def described(bucket: Any) -> Bucket:
    """Return a bucket of DistributedDataParallel as hpccomm describes one."""
    dtype = array(bucket.buffer()).dtype
    shapes = [tuple(each.shape) for each in bucket.gradients()]
    parameters = tuple(Parameter(str(i), shape, dtype) for i, shape in enumerate(shapes))
    ends = list(accumulate(map(prod, shapes), initial=0))
    return Bucket(bucket.index(), dtype, parameters, tuple(ends[:-1]), ends[-1])
