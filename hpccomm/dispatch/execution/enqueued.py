"""Runs programs on device arrays by putting messages, copies and folds on a stream.

The stream runs them one after the other, so that the host never waits, and a graph can be captured.
Channels follow one another: they are independent, and may run in any order.
`hpccomm.dispatch.device_schedules` uses it.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from hpccomm.contracts.device import Piece, Pieces, Span
from hpccomm.dispatch.execution.program import OWN, LocalRound, Step, Transit, local_rounds
from hpccomm.dtypes import DType
from hpccomm.memory.cuda.folding import DeviceFolder
from hpccomm.memory.cuda.memory import Scratch, copy
from hpccomm.schedules.schedule import Schedule

StreamExchange = Callable[[Pieces, Pieces, int], None]
"""``exchange(receives, sends, stream)`` puts messages on a stream that go on at the same time."""


Addresses = tuple[int, int, int]
"""Of this rank's buffers, by number."""


class DevicePlace(NamedTuple):
    """Elements of the buffer of that number, `offset` bytes from its beginning."""

    buffer: int
    offset: int
    elements: int


class DeviceProgram:
    """One rank's program, for arrays in device memory.

    Parameters
    ----------
    schedule : Schedule
        What this rank does. It names no memory of peers.
    dtype : dtype
        Of its elements.
    fold : DeviceFolder or None
        The reduction, if there is one.
    scratch : Scratch
        Where its scratch is from.

    Attributes
    ----------
    turns : tuple of LocalRound
        In order, one channel after another.
    """

    def __init__(
        self, schedule: Schedule, dtype: DType, fold: DeviceFolder | None, scratch: Scratch
    ) -> None:
        self._dtype = dtype
        self._elements = schedule.scratch
        self._fold = fold
        self._scratch = scratch

        def placed(buffer: int, start: int, count: int) -> DevicePlace:
            assert buffer < len(OWN)  # device memory of peers is not reached
            return DevicePlace(buffer, start * dtype.itemsize, count)

        self.turns = tuple(
            LocalRound(_full(receives), _full(sends), local)
            for channel in local_rounds(schedule, placed)
            for receives, sends, local in channel
        )

    def buffers(self, send: int, recv: int) -> tuple[Addresses, Any]:
        """Return the addresses of this rank's buffers, and what keeps its scratch.

        For work on CuPy's current stream. What keeps the scratch may be dropped once that work is on
        the stream, and what else reads it is done.

        Parameters
        ----------
        send, recv : int
            Addresses of the arrays; any number without an array.

        Raises
        ------
        UsageError
            If a graph is captured from the stream, and its memory is not allocated yet.
        """
        if not self._elements:
            return (send, recv, 0), None
        scratch = self._scratch.empty(self._elements * self._dtype.itemsize)
        return (send, recv, scratch.data.ptr), scratch

    def pieces(self, messages: Sequence[Transit[DevicePlace]], at: Addresses) -> list[Piece]:
        """Return messages of a turn, by the addresses that `buffers` gave."""
        dtype = self._dtype
        return [
            Piece(peer, Span(at[buffer] + offset, elements, dtype))
            for peer, (buffer, offset, elements) in messages
        ]

    def carry_out(self, local: Sequence[Step[DevicePlace]], at: Addresses, stream: int) -> None:
        """Put a turn's local steps on a stream, which is CuPy's current one. Never blocks."""
        itemsize = self._dtype.itemsize
        for sources, (buffer, offset, elements), final in local:
            target = at[buffer] + offset
            if final is None:
                of, begin, _ = sources[0]
                copy(at[of] + begin, target, elements * itemsize, stream)
            else:
                assert self._fold is not None
                contributions = [at[of] + begin for of, begin, _ in sources]
                self._fold(contributions, target, elements, final)

    def enqueue(self, exchange: StreamExchange, send: int, recv: int, stream: int) -> None:
        """Put the whole program on a stream, which is CuPy's current one. Never blocks.

        Parameters
        ----------
        exchange : callable
            Puts messages on a stream.
        send, recv : int
            Addresses of the arrays; any number without an array.
        stream : int
            The stream's number.

        Raises
        ------
        UsageError
            If a graph is captured from the stream, and its memory is not allocated yet.
        """
        at, alive = self.buffers(send, recv)
        for receives, sends, local in self.turns:
            if receives or sends:
                exchange(self.pieces(receives, at), self.pieces(sends, at), stream)
            if local:
                self.carry_out(local, at, stream)
        del alive  # from here on the pool gives it to what comes later on this stream


def _full(messages: Sequence[Transit[DevicePlace]]) -> tuple[Transit[DevicePlace], ...]:
    return tuple(each for each in messages if each.data.elements)
