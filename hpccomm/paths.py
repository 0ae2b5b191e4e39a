"""Which way an array goes, decided once for calls that ask for the same.

The host path takes the backend's own collective where it has one that means the same, else one of
hpccomm's algorithms over the backend's point-to-point.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple
from zlib import crc32

import numpy as np

from hpccomm import policy
from hpccomm.algorithms import ALGORITHMS, Build
from hpccomm.contracts.backend import Backend, Buffer, Native
from hpccomm.contracts.choice import Choice
from hpccomm.contracts.schedule import Schedule, Tuning, world
from hpccomm.contracts.signature import Signature
from hpccomm.contracts.transport import Reach
from hpccomm.dtypes import DType, is_narrow
from hpccomm.errors import ConfigurationError
from hpccomm.execution import Forms, Program, Room, Runner, compiled, completed
from hpccomm.reductions import (
    Average,
    Folder,
    Op,
    PremulSum,
    ReduceOp,
    identity,
    name_of,
    premultiply,
)
from hpccomm.settings import DEFAULT_SEGMENT, Settings
from hpccomm.waiting import Steps

logger = logging.getLogger("hpccomm")

DEFAULT_CHANNELS = 2
"""Pieces of an array under way at the same time, where the policy does not say."""

MOST_SEGMENTS = 1 << 14
"""An array is cut into about so many at most: their number is the length of a program. Through a room
that is too small for that nothing is staged."""

Run = Callable[[Buffer, Buffer], None]
Start = Callable[[Buffer, Buffer], Steps]
Before = Callable[[Buffer], Buffer]
After = Callable[[Buffer], None]


@dataclass(frozen=True, slots=True)
class Way:
    """How calls of one signature are carried out.

    Attributes
    ----------
    choice : Choice
        What was decided.
    start : callable
        ``start(send, recv)`` gives the polled steps.
    run : callable or None
        ``run(send, recv)`` blocks in the backend's library; synchronous calls take it where it is
        there.
    """

    choice: Choice
    start: Start
    run: Run | None = None


class HostPath:
    """The way of arrays in host memory.

    Parameters
    ----------
    backend : Backend
        Moves the data.
    settings : Settings
        Of the communicator.
    tables : policy.Tables
        What `auto` goes by.

    Attributes
    ----------
    policy : policy.Policy
        Chooses the algorithms.
    """

    def __init__(self, backend: Backend, settings: Settings, tables: policy.Tables) -> None:
        self._backend = backend
        self._segment = settings.segment
        self._runner = Runner(backend.collectives)
        self._products = Room()
        self._averages: dict[DType, Average] = {}
        self._folders: dict[tuple[ReduceOp, DType], Folder] = {}
        self._sharing = sharing(backend, settings)
        self._shared = self._sharing is not None and backend.topology.num_nodes == 1
        memory = memory_way(self._sharing)
        self.policy = tables.policy(tables.shape(backend.name, backend.topology, memory))

    def applicable(self, call: Signature, deterministic: bool) -> tuple[str, ...]:
        """Return the names that ``algorithm=`` may take for calls like `call`."""
        native = self._backend.native(_carried_out(call)) is not None
        return policy.applicable(
            call, native=native, shared=self._shared, deterministic=deterministic
        )

    def decide(self, call: Signature, algorithm: str, deterministic: bool) -> Way:
        """Decide how calls like `call` are carried out. Local; the same on every rank.

        Raises
        ------
        UsageError
            If `algorithm` does not apply.
        """
        backend = self._backend
        inner = _carried_out(call)
        native = backend.native(inner)
        decision = self.policy.decide(
            call,
            algorithm,
            native=native is not None,
            shared=self._shared,
            deterministic=deterministic,
        )
        before, after = self._before(call), self._after(call, decision.algorithm)
        if decision.algorithm == policy.NATIVE:
            assert native is not None
            choice = self._choice(call, decision, None)
            return _way(choice, before, _polled(native), native.run, after)
        if deterministic and call.collective == "scan" and _rounds_narrow(call):
            return self._widened(call, decision)
        called = _fingerprint(call, (decision.algorithm, deterministic))
        start, cut = self._start(inner, decision.pick, deterministic, called)
        segment = None if cut is None else cut * call.dtype.itemsize
        choice = self._choice(call, decision, segment)
        found = ALGORITHMS[call.collective][decision.algorithm]
        if self._sharing is not None and (found.shared or (found.direct and not deterministic)):
            choice = replace(choice, reason=f"{choice.reason}; {self._sharing.how}")
        return _way(choice, before, start, None, after)

    def registered(self, *arrays: Buffer) -> bool:
        """Tell whether this rank has arrays, all of them in memory that its peers map. Local."""
        shared = self._backend.collectives.shared
        if self._sharing is None or shared is None:
            return False
        held = [shared.holds(each) for each in arrays if each is not None and each.size]
        return bool(held) and all(held)

    def _choice(self, call: Signature, decision: policy.Decision, segment: int | None) -> Choice:
        return Choice(
            collective=call.name,
            path="host",
            backend=self._backend.name,
            algorithm=decision.algorithm,
            segment=segment,
            registered=False,
            reason=decision.reason,
        )

    def _start(
        self, call: Signature, pick: policy.Pick, deterministic: bool, fingerprint: int
    ) -> tuple[Start, int | None]:
        """Return what runs an algorithm, and the elements of its segments."""
        found = ALGORITHMS[call.collective][pick.algorithm]
        fold = None if call.op is None else self._folder(call.op, call.dtype)
        build = found.ordered if deterministic and found.ordered else found.build
        direct = found.build if found.shared else None if deterministic else found.direct
        if direct is None or self._sharing is None:
            schedule = self._schedule(build, call, pick)
            program = self._compiled(schedule, call)
            return partial(self._runner.steps, program, call.dtype, fold), schedule.segment
        apart = build
        if found.shared:
            # What the ranks find out in the call may leave messages alone.
            other = ALGORITHMS[call.collective][policy.own(call, self._backend.size)]
            apart = other.ordered if deterministic and other.ordered else other.build
        schedules = {Reach.APART: apart, Reach.DIRECT: direct}
        if found.staged is not None:
            schedules[Reach.STAGED] = found.staged
        forms, segment = self._forms(call, pick, schedules, fingerprint)
        return partial(self._runner.formed, forms, call.dtype, fold), segment

    def _forms(
        self,
        call: Signature,
        pick: policy.Pick,
        builds: Mapping[Reach, Build],
        fingerprint: int,
    ) -> tuple[Forms, int | None]:
        """Return the forms of a call, and the elements of the segments of the likeliest."""
        sharing = self._sharing
        assert sharing is not None
        likely, scratch = Reach.DIRECT, 0
        if not sharing.plain and Reach.STAGED in builds:
            staged = self._schedule(builds[Reach.STAGED], call, pick)
            likely, scratch = Reach.STAGED, staged.scratch * call.dtype.itemsize
            if staged.segment and call.elements // MOST_SEGMENTS > staged.segment:
                likely, scratch = Reach.APART, 0
                logger.info(
                    "%s of %d bytes would go through staging in pieces of %d bytes: too many; plain "
                    "arrays are sent as messages (a larger shared_memory_room allows larger pieces)",
                    call.name,
                    call.nbytes,
                    staged.segment * call.dtype.itemsize,
                )
        topology, rank = self._backend.topology, self._backend.rank
        forms = Forms(
            rank,
            tuple(topology.neighbours(rank)),
            fingerprint,
            {reach: partial(self._built, build, call, pick) for reach, build in builds.items()},
            scratch=scratch,
            plain=sharing.plain,
            room=sharing.room,
        )
        return forms, self._schedule(builds[likely], call, pick).segment

    def _built(self, build: Build, call: Signature, pick: policy.Pick) -> Program:
        return self._compiled(self._schedule(build, call, pick), call)

    def _schedule(self, build: Build, call: Signature, pick: policy.Pick) -> Schedule:
        """Return this rank's schedule."""
        backend = self._backend
        itemsize = call.dtype.itemsize
        nbytes = self._segment or pick.segment or DEFAULT_SEGMENT
        segment = max(1, nbytes // itemsize)
        if call.collective != "all_to_all" or call.uniform:  # else ranks have their own elements
            segment = max(segment, call.elements // MOST_SEGMENTS)
        room = 0 if self._sharing is None else self._sharing.room // itemsize
        channels = pick.channels or DEFAULT_CHANNELS
        tuning = Tuning(segment, channels, backend.topology, room)
        return build(world(backend.size, np.array([backend.rank])), call, tuning)

    def _compiled(self, schedule: Schedule, call: Signature) -> Program:
        send, recv = call.lengths(np.array([self._backend.rank]))
        return compiled(schedule, (int(send[0]), int(recv[0])))

    def _folder(self, op: Op, dtype: DType) -> Folder:
        """Return what folds; calls of one named reduction and dtype share it, and its memory."""
        if not isinstance(op, ReduceOp):
            return Folder(op, dtype)
        averaged = self._backend.size if op is ReduceOp.AVG else 0
        found = self._folders.get((op, dtype))
        if found is None:
            found = self._folders[op, dtype] = Folder(op, dtype, averaged)
        return found

    def _widened(self, call: Signature, decision: policy.Decision) -> Way:
        """Scan narrow floats in float32, so that they are rounded once and not at each hop."""
        wide = replace(_carried_out(call), dtype=np.dtype(np.float32), in_place=False)
        called = _fingerprint(call, (decision.algorithm, True))
        start, cut = self._start(wide, decision.pick, True, called)

        def start_wide(send: Buffer, recv: Buffer) -> Steps:
            assert send is not None
            assert recv is not None
            result = np.empty(recv.size, np.float32)
            yield from start(send.astype(np.float32), result)
            with np.errstate(over="ignore", invalid="ignore"):
                np.copyto(recv, result, casting="unsafe")

        segment = None if cut is None else cut * wide.dtype.itemsize
        choice = self._choice(call, decision, segment)
        before, after = self._before(call), self._after(call, decision.algorithm)
        return _way(choice, before, start_wide, None, after)

    def _before(self, call: Signature) -> Before | None:
        """Return what makes the contribution of `send`, or None if it is that itself."""
        op = call.op
        if not isinstance(op, PremulSum):
            return None

        def scaled(send: Buffer) -> Buffer:
            assert send is not None
            # Apart: the user's array stays as it is.
            product = self._products.take(send.size, send.dtype)
            premultiply(op, send, product)
            return product

        return scaled

    def _after(self, call: Signature, algorithm: str) -> After | None:
        """Return what is left to do on `recv`, or None."""
        if call.op is ReduceOp.AVG and algorithm == policy.NATIVE:
            average = self._averages.get(call.dtype)
            if average is None:
                average = self._averages[call.dtype] = Average(call.dtype, self._backend.size)
            divide = average
            return lambda recv: None if recv is None else divide(recv)
        if call.exclusive and self._backend.rank == 0:
            assert call.op is not None
            neutral = identity(call.op, call.dtype)
            return lambda recv: None if recv is None else recv.fill(neutral)
        return None


class Sharing(NamedTuple):
    """How the ranks of a node reach each other's memory.

    Attributes
    ----------
    plain : bool
        Whether plain arrays are reached.
    room : int
        Bytes that a rank may have for staging.
    how : str
        The same in words.
    """

    plain: bool
    room: int
    how: str


def sharing(backend: Backend, settings: Settings) -> Sharing | None:
    """Return how the ranks of a node share memory; None if they do not. The same on all ranks.

    Raises
    ------
    ConfigurationError
        If the settings ask for what is not allowed here.
    """
    shared, asked = backend.collectives.shared, settings.shared_memory
    if shared is None or asked == "off":
        return None
    if asked == "pages" and not shared.plain:
        raise ConfigurationError(
            f"shared_memory is 'pages', and ranks cannot reach each other's pages: {shared.how}; "
            "allow it, or give 'auto' or 'staging'"
        )
    plain = shared.plain and asked != "staging"
    if plain:
        others = shared.how
    else:
        others = f"through a staging buffer ({'as asked' if shared.plain else shared.how})"
    how = f"ranks of a node map each other's arrays of comm.empty; others are reached: {others}"
    return Sharing(plain, shared.share(settings.shared_memory_room), how)


def memory_way(found: Sharing | None) -> str:
    """Return how plain arrays are reached, as `policy.Shape` names it."""
    if found is None:
        return "off"
    return "pages" if found.plain else "staging"


def _fingerprint(call: Signature, how: tuple[str, bool]) -> int:
    """Return a number that differs where calls do that must be equal on all ranks."""
    # Each rank has its own counts of an uneven all-to-all.
    counts = () if call.collective == "all_to_all" and not call.uniform else call.counts
    op = None if call.op is None else (name_of(call.op), repr(getattr(call.op, "factor", None)))
    terms = (call.collective, str(call.dtype), counts, op, call.root, call.exclusive, how)
    return crc32(repr(terms).encode())


def _rounds_narrow(call: Signature) -> bool:
    return is_narrow(call.dtype) and isinstance(call.op, ReduceOp | PremulSum)


def _polled(native: Native) -> Start:
    def start(send: Buffer, recv: Buffer) -> Steps:
        return completed([native.start(send, recv)])

    return start


def _carried_out(call: Signature) -> Signature:
    """Return the call that is left once contributions are multiplied beforehand."""
    if isinstance(call.op, PremulSum):
        return replace(call, op=ReduceOp.SUM, in_place=False)
    return call


def _way(
    choice: Choice, before: Before | None, start: Start, run: Run | None, after: After | None
) -> Way:
    if before is None and after is None:
        return Way(choice, start, run)

    def start_all(send: Buffer, recv: Buffer) -> Steps:
        yield from start(before(send) if before else send, recv)
        if after:
            after(recv)

    if run is None:
        return Way(choice, start_all)
    blocking = run

    def run_all(send: Buffer, recv: Buffer) -> None:
        blocking(before(send) if before else send, recv)
        if after:
            after(recv)

    return Way(choice, start_all, run_all)
