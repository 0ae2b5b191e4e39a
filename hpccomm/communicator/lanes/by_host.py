"""Calls on device arrays in which the host takes part: polled, between the streams of their arrays."""

from functools import partial

from hpccomm.communicator.lanes.issuing import IssueOnStream, StreamIssuer
from hpccomm.contracts.device import DeviceStart
from hpccomm.contracts.transport import Steps
from hpccomm.errors import UsageError
from hpccomm.memory.cuda import streams
from hpccomm.memory.cuda.streams import Queue
from hpccomm.runtime.engine import CallEngine
from hpccomm.runtime.operation import Label, Operation


class StreamsByHost:
    """Carries out such calls.

    Parameters
    ----------
    calls : CallEngine
        The communicator's.
    issuer : StreamIssuer
        Has the stream of asynchronous calls.
    name : str
        The way that data takes.
    device : int
        CUDA device of this rank.
    """

    def __init__(self, calls: CallEngine, issuer: StreamIssuer, name: str, device: int) -> None:
        self._calls = calls
        self._issuer = issuer
        self._name = name
        self._device = device

    def issuing(self, label: Label, start: DeviceStart, ordered: bool) -> IssueOnStream:
        """Return what carries a call out and waits for it."""

        def issue(send: int, recv: int, queue: Queue, keep: object, timeout: float) -> None:
            operation = self.operation(label, start, (send, recv), queue, keep, ordered)
            self._calls.operate(operation, timeout)

        return issue

    def operation(
        self,
        label: Label,
        start: DeviceStart,
        addresses: tuple[int, int],
        queue: Queue,
        keep: object,
        ordered: bool,
        *,
        apart: bool = False,
    ) -> Operation:
        """Return a call as something polled; with `apart`, on the communicator's own stream.

        Apart, it is done once the device is: the stream of its arrays, which may be gone by then, is
        asked for nothing more.

        Raises
        ------
        UsageError
            If a CUDA graph is being captured.
        """
        self._refuse_capture(label[0], queue)
        if not apart:
            steps = partial(start, *addresses, queue[0])
            return Operation(*label, steps, (keep, queue), ordered)
        own = self._issuer.own_stream()
        with streams.on_device(self._device):
            ready, done = streams.owned_event(), streams.owned_event()
            streams.record(ready.ptr, queue[0])
            streams.order(ready.ptr, own)

        def steps_apart() -> Steps:
            yield from start(*addresses, own)
            streams.record(done.ptr, own)
            while not streams.ready(done.ptr):
                yield False

        return Operation(*label, steps_apart, (keep, ready, done), ordered)

    def _refuse_capture(self, name: str, queue: Queue) -> None:
        if streams.capturing(queue[0]):
            raise UsageError(
                f"{name} on device arrays cannot be captured in a CUDA graph: the host takes part in it, "
                f"since it goes over {self._name!r}; call it outside of the capture, or use NCCL "
                "(comm.backends and comm.explain say why it is not used)"
            )
