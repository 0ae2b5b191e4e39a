"""A communicator of the stand-in's NCCL: what it carries out on streams, in the order of calls."""

import os
import pickle
import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from itertools import permutations

import numpy as np

from standin import control, heap, streams
from standin.nccl.collectives import ROOTED_IN, ROOTED_OUT, Terms, outcome
from standin.nccl.post import Stopped, post
from standin.nccl.reductions import DTYPES, scaled

Span = tuple[int, int]
"""An address, and bytes."""


@dataclass(frozen=True)
class Collective:
    """A collective call of one rank."""

    terms: Terms
    send: int
    recv: int
    factor: np.ndarray | None = None

    def spans(self, rank: int, size: int) -> tuple[list[Span], list[Span]]:
        """Return what it reads and what it writes."""
        given, got = self.terms.sizes(rank, size)
        return [(self.send, given)], [(self.recv, got)]


@dataclass(frozen=True)
class Message:
    """A point-to-point call of one rank."""

    sends: bool
    peer: int
    pointer: int
    count: int
    datatype: int

    @property
    def nbytes(self) -> int:
        """Bytes."""
        return self.count * DTYPES[self.datatype].itemsize

    def spans(self, _rank: int, _size: int) -> tuple[list[Span], list[Span]]:
        """Return what it reads and what it writes."""
        span = [(self.pointer, self.nbytes)]
        return (span, []) if self.sends else ([], span)


Call = Collective | Message


def overlapping(calls: tuple[Call, ...], rank: int, size: int) -> bool:
    """Tell whether calls of one group write what they also read or write, in place aside."""
    spans = []
    for number, call in enumerate(calls):
        given, got = call.spans(rank, size)
        if isinstance(call, Collective) and _shared(*given[0], *got[0]):
            # In place: the whole array, or the own block of the larger one.
            (block, nbytes), (whole, length) = sorted(given + got, key=lambda span: span[1])
            apart = rank * nbytes if nbytes != length else 0
            if block != whole + apart or call.terms.kind == "all_to_all":
                return True
        spans += [(number, span, False) for span in given] + [(number, span, True) for span in got]
    return any(
        writes and one != other and _shared(*span, *other_span)
        for (one, span, writes), (other, other_span, _) in permutations(spans, 2)
    )


def _shared(start: int, nbytes: int, other: int, length: int) -> bool:
    return nbytes > 0 and length > 0 and start < other + length and other < start + nbytes


class Communicator:
    """One rank's.

    Attributes
    ----------
    name : str
        The same on all ranks, and no other communicator's.
    rank, size : int
        This rank and the number of them.
    device : devices.Device
        This rank's.
    addresses : list of str
        Of the ranks' processes.
    algorithms : standin.nccl.algorithms.Allowed
        What NCCL_ALGO left when it was created.
    error : int
        What it noticed by itself; 0 while there is nothing.
    aborted : bool
        Whether it was aborted.
    revoked : bool
        Whether it was revoked.
    freed : bool
        Whether its memory is gone, though something may come behind on a stream.
    inside : int
        Threads that are in a call of it.
    """

    error = inside = children = 0
    aborted = revoked = freed = False
    _graphs = 0  # that have a call of it
    _last: streams.Marker | None = None

    def __init__(self, name, rank, addresses, device, algorithms) -> None:
        self.name = name
        self.rank = rank
        self.size = len(addresses)
        self.addresses = addresses
        self.device = device
        self.algorithms = algorithms
        self.using = threading.Lock()
        self.factors: dict[int, tuple[int, np.ndarray]] = {}
        self.registered: dict[int, tuple[int, int]] = {}
        self._post = post()
        self._box = self._post.box((name, rank))
        self._process = os.getpid()
        self._turn = threading.Lock()
        self._graphs_changed = threading.Condition()
        self._connected: set[str] = set()

    # On the host

    def order(self, stream: streams.Stream) -> None:
        """Have a stream wait for what this communicator was last asked for, as NCCL does."""
        if self._last is not None and stream.capture is None:
            stream.after(self._last)

    def launched(self, stream: streams.Stream) -> None:
        """Note that the last call was put on a stream."""
        if stream.capture is None:
            self._last = stream.mark()

    def busy(self) -> bool:
        """Tell whether something is under way."""
        return self._last is not None and not self._last.done()

    def finish(self) -> None:
        """Block until nothing is under way."""
        if self._last is not None:
            self._last.wait()

    def check_process(self) -> None:
        """Note that it is used after a fork."""
        if os.getpid() != self._process:
            control.violation(f"NCCL communicator {self.name} was used after a fork")

    def hold(self) -> None:
        """Note a graph that has a call of it: NCCL counts them."""
        with self._graphs_changed:
            self._graphs += 1

    def let_go(self) -> None:
        """Note that such a graph has ended."""
        with self._graphs_changed:
            self._graphs -= 1
            self._graphs_changed.notify_all()

    def outlive_graphs(self) -> None:
        """Block until no graph has a call of it, as NCCL's destroy and abort do."""
        with self._graphs_changed:
            self._graphs_changed.wait_for(lambda: self._graphs == 0)

    def abort(self) -> None:
        """End what is under way, and have nothing begin any more."""
        self.aborted = True
        self._box.wake()

    def stop(self) -> None:
        """End what is under way; after a revocation it is not waited for once more (init.cc, commReclaim)."""
        self.abort()
        if self.revoked:
            self.freed = True
        else:
            self.finish()

    def notice(self, status: int) -> None:
        """Notice an error: calls are refused, and what is under way is stuck until it is aborted."""
        self.error = self.error or status

    def place(self, pointer: int, nbytes: int) -> tuple[int, int] | None:
        """Return the offset and the size of the registered range that memory lies in, or None."""
        for start, size in tuple(self.registered.values()):
            if start <= pointer and pointer + nbytes <= start + size:
                return pointer - start, size
        return None

    def places(self, call: Collective) -> list[object]:
        """Return where the arrays of a call are registered. In place, the larger one is asked."""
        given, got = call.spans(self.rank, self.size)
        spans = given + got
        if _shared(*given[0], *got[0]):
            spans = [max(spans, key=lambda span: span[1])]
        return [self.place(*span) for span in spans if span[1]]

    def connect(self, call: Collective) -> None:
        """Connect the ranks at the first call of a kind, which waits for all of them, or for an abort."""
        kind = call.terms.kind
        if control.on("STANDIN_CONNECT") and kind not in self._connected:
            # On the host, which looks all the time: it has left before a revocation ends.
            self.meet(("connect", kind), lambda: self.aborted or self.revoked)
            self._connected.add(kind)

    def meet(self, what: Hashable, stopped: Callable[[], bool]) -> None:
        """Wait on the host until all ranks have come here, or raise `Stopped`."""
        for rank in range(self.size):
            self._send(rank, (what, self.rank), b"")
        for rank in range(self.size):
            self._box.take((what, rank), stopped)

    # On a stream

    def carry_out(self, calls: tuple[Call, ...]) -> None:
        """Carry out the calls of one group; returns at once when aborted."""
        if self.freed:
            control.violation(f"a call of NCCL communicator {self.name} runs in freed memory")
        try:
            with self._turn:
                for call in calls:
                    if isinstance(call, Collective):
                        self._collective(call)
                self._messages([call for call in calls if isinstance(call, Message)])
        except Stopped:
            pass

    def _collective(self, call: Collective) -> None:
        (source,), (target,) = call.spans(self.rank, self.size)
        given = heap.view(*source)
        if call.factor is not None:
            with np.errstate(all="ignore"):
                given = scaled(given.view(call.factor.dtype), call.factor)
        mine = call.terms, given.tobytes(), self.places(call)
        self._send(0, ("in", self.rank), pickle.dumps(mine))
        if self.rank == 0:
            self._answer()
        got: str | bytes = pickle.loads(self._take("out"))
        if isinstance(got, str):
            control.violation(f"NCCL communicator {self.name}, rank {self.rank}: {got}")
            self.notice(5)  # ncclInvalidUsage
            self._take("never")  # as a kernel whose peers do something else
        out = heap.view(*target)
        out[:] = np.frombuffer(got, np.uint8)

    def _answer(self) -> None:
        told = [pickle.loads(self._take(("in", rank))) for rank in range(self.size)]
        terms, given, places = zip(*told, strict=True)
        there = {place is not None for each in places for place in each}
        rooted = terms[0].kind in ROOTED_IN | ROOTED_OUT
        apart = there == {True} and not rooted and any(each != places[0] for each in places)
        if len(there) > 1 or apart:
            control.violation(f"registered on some ranks alone, or at other offsets: {places}")
        if len(set(terms)) > 1:
            differing = "; ".join(f"rank {rank}: {t}" for rank, t in enumerate(terms))
            answers: list = [f"a call differs between the ranks: {differing}"] * self.size
        else:
            answers = outcome(terms[0], list(given))
        for rank, answer in enumerate(answers):
            self._send(rank, "out", pickle.dumps(answer))

    def _messages(self, messages: list[Message]) -> None:
        """Have all messages of a group go on at the same time."""
        for each in messages:
            if not each.sends:
                there = self.place(each.pointer, each.nbytes) is not None
                self._send(each.peer, ("ready", self.rank), bytes([there]))
        for each in messages:
            if each.sends:
                (there,) = self._take(("ready", each.peer))
                if there != (self.place(each.pointer, each.nbytes) is not None):
                    # enqueue.cc wants registered buffers on both sides
                    control.violation("a message is registered on one side")
                data = heap.view(each.pointer, each.nbytes).tobytes()
                self._send(each.peer, ("data", self.rank), data)
        for each in messages:
            if not each.sends:
                got = self._take(("data", each.peer))
                memoryview(heap.view(each.pointer, each.nbytes))[:] = got  # of the same size

    def _send(self, rank: int, kind: Hashable, data: bytes) -> None:
        self._post.send(self.addresses[rank], (self.name, rank), kind, data)

    def _take(self, kind: Hashable) -> bytes:
        return self._box.take(kind, lambda: self.aborted)
