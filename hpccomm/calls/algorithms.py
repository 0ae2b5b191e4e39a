"""Runs hpccomm's own algorithms on host arrays, for `on_host`.

`hpccomm.communicator.creation` and windows use `sharing`, which says how ranks of a node share memory.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from hpccomm.calls import policy
from hpccomm.calls.program import Program, Variants, compiled
from hpccomm.calls.runner import Runner
from hpccomm.contracts.backend import Backend, Implementation
from hpccomm.contracts.signature import Choice, Signature, of_call
from hpccomm.contracts.transport import Reach
from hpccomm.dtypes import DType
from hpccomm.errors import ConfigurationError
from hpccomm.memory.folding import Folder
from hpccomm.reductions import Op, ReduceOp
from hpccomm.schedules.algorithms import ALGORITHMS, Algorithm
from hpccomm.schedules.schedule import Build, Group, Schedule, Tuning, segment_elements, world
from hpccomm.settings import DEFAULT_SEGMENT, Settings


class Sharing(NamedTuple):
    """The access of the ranks of a node to each other's memory.

    Attributes
    ----------
    plain : bool
        Whether ranks reach plain arrays.
    room : int
        Most bytes of a rank for staging.
    how : str
        The access in words.
    """

    plain: bool
    room: int
    how: str


def sharing(backend: Backend, settings: Settings) -> Sharing | None:
    """Return how the ranks of a node share memory; None if they do not. The same on all ranks.

    Raises
    ------
    ConfigurationError
        If the settings request a form that is not allowed here.
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
    others = shared.how
    if not plain:
        others = f"through a staging buffer ({'as asked' if shared.plain else shared.how})"
    how = f"ranks of a node map each other's arrays of comm.empty; plain ones: {others}"
    return Sharing(plain, shared.share(settings.shared_memory_room), how)


def memory_way(found: Sharing | None) -> str:
    """Return how plain arrays are reached, as `Shape` names it."""
    if found is None:
        return "off"
    return "pages" if found.plain else "staging"


if TYPE_CHECKING:
    from hpccomm.schedules.cost.network import Network

logger = logging.getLogger("hpccomm")

DEFAULT_CHANNELS = 2
"""Pieces of an array under way at the same time, if the policy does not say."""

MOST_SEGMENTS = 1 << 14
"""Most segments of an array. If the staging memory is so small that an array needs more, nothing is staged."""


class AlgorithmRunner:
    """Runs algorithms on the ranks of one communicator.

    Parameters
    ----------
    backend : Backend
        The backend of the messages.
    sharing : Sharing or None
        The access of the ranks of a node to each other's memory; None if they share none.
    segment : int or None
        Bytes to move at a time, if the settings give them.
    network : callable
        Returns the network of the ranks, on which algorithms are compared.
    """

    def __init__(
        self,
        backend: Backend,
        sharing: Sharing | None,
        segment: int | None,
        network: Callable[[], "Network"],
    ) -> None:
        self._backend = backend
        self._network = network
        self._sharing = sharing
        self._segment = segment
        self._runner = Runner(backend.collectives)
        self._folders: dict[tuple[ReduceOp, DType], Folder] = {}

    def implement(
        self, asked: Signature, call: Signature, choice: Choice
    ) -> tuple[Choice, Implementation]:
        """Return the functions that run an algorithm, and the choice, completed with facts of the schedule.

        These facts are the bytes to move at a time, and how the ranks of a node reach each other's arrays.

        Parameters
        ----------
        asked : Signature
            The user's call, whose fingerprint ranks compare when they reach each other's memory.
        call : Signature
            The call that the algorithm carries out for it.
        choice : Choice
            The choice of the algorithm.
        """
        tuning, algorithm = self._tuning(call, choice), policy.algorithm_of(call, choice)
        fold = None if call.op is None else self._folder(call.op, call.dtype)
        builds = self._builds(call, algorithm)
        if choice.other is not None:
            foreign = {
                reach: build
                for reach, build in builds.items()
                if not (algorithm.shared and reach is Reach.NONE)  # that build is hpccomm's own
            }
            from hpccomm.calls.proofs import proven

            code = proven(choice.algorithm, foreign, call, tuning, self._backend.size)
            choice = replace(choice, schedule=code)
        itemsize = call.dtype.itemsize
        if Reach.DIRECT not in builds:
            schedule = self._schedule(builds[Reach.NONE], call, tuning)
            program = compiled(schedule, call.lengths_of(self._backend.rank))
            start = partial(self._runner.steps, program, call.dtype, fold)
            choice = replace(choice, segment=schedule.segment_nbytes(itemsize))
            return choice, Implementation(start)
        sharing = self._sharing
        assert sharing is not None
        likely, scratch, reached = self._likely(builds, call, tuning, sharing)
        rank = self._backend.rank
        neighbors = self._backend.topology.neighbors(rank)
        here = neighbors.index(rank)
        forms = Variants(
            (*neighbors[here:], *neighbors[:here]),
            of_call(asked, choice.algorithm, schedule=choice.schedule).fingerprint,
            {
                reach: cache(partial(self._built, each, call, tuning))
                for reach, each in builds.items()
            },
            call.dtype,
            fold,
            scratch=scratch,
            plain=sharing.plain,
            room=sharing.room,
        )
        segment = likely.segment_nbytes(itemsize)
        reason = "; ".join(filter(None, (choice.reason, reached)))
        return replace(choice, segment=segment, reason=reason), Implementation(
            partial(self._runner.formed, forms)
        )

    def _builds(self, call: Signature, found: Algorithm) -> dict[Reach, Build]:
        """Return the builds of an algorithm's forms, by the memory that ranks reach of each other."""
        deterministic = bool(call.deterministic)
        if self._sharing is None or not found.shared:
            builds = {Reach.NONE: found.by_messages(deterministic)}
            if self._sharing is not None and found.direct is not None and not deterministic:
                builds[Reach.DIRECT] = found.direct
            return builds

        def by_messages(group: Group, call: Signature, tuning: Tuning) -> Schedule:
            names = policy.applicable(call)
            other = policy.fastest(call, names, self._network()).algorithm
            build = ALGORITHMS[call.collective][other].by_messages(deterministic)
            return build(group, call, tuning)

        # In a call, ranks may find that only messages are possible.
        builds = {Reach.NONE: by_messages, Reach.DIRECT: found.build}
        if found.staged is not None:
            builds[Reach.STAGED] = found.staged
        return builds

    def _likely(
        self, builds: Mapping[Reach, Build], call: Signature, tuning: Tuning, sharing: Sharing
    ) -> tuple[Schedule, int, str]:
        """Return the schedule that a call usually runs, its bytes of scratch, and how plain arrays are reached."""
        if call.registered:
            return self._schedule(builds[Reach.DIRECT], call, tuning), 0, ""
        if sharing.plain or Reach.STAGED not in builds:
            return self._schedule(builds[Reach.DIRECT], call, tuning), 0, sharing.how
        staged = self._schedule(builds[Reach.STAGED], call, tuning)
        scratch = staged.scratch * call.dtype.itemsize
        pieces = call.elements // (staged.segment or max(call.elements, 1))
        if scratch <= sharing.room and pieces <= MOST_SEGMENTS:
            return staged, scratch, sharing.how
        reached = (
            "ranks of a node map each other's arrays of comm.empty; plain ones are sent as messages, "
            f"since {sharing.room} bytes a rank are too little to stage them "
            "(a larger shared_memory_room would do)"
        )
        logger.info("%s of %d bytes: %s", call.name, call.nbytes, reached)
        return self._schedule(builds[Reach.NONE], call, tuning), 0, reached

    def _built(self, build: Build, call: Signature, tuning: Tuning) -> Program:
        schedule = self._schedule(build, call, tuning)
        return compiled(schedule, call.lengths_of(self._backend.rank))

    def _schedule(self, build: Build, call: Signature, tuning: Tuning) -> Schedule:
        """Return this rank's schedule."""
        group = world(self._backend.size, np.array([self._backend.rank]))
        return build(group, call, tuning)

    def _tuning(self, call: Signature, choice: Choice) -> Tuning:
        """Return the parameters for schedules."""
        nbytes = self._segment or choice.segment or DEFAULT_SEGMENT
        room = 0 if self._sharing is None else self._sharing.room // call.dtype.itemsize
        return Tuning(
            segment_elements(call, nbytes, MOST_SEGMENTS),
            choice.channels or DEFAULT_CHANNELS,
            self._backend.topology,
            room,
        )

    def _folder(self, op: Op, dtype: DType) -> Folder:
        """Return the folder of a reduction. Calls with the same named reduction and dtype share one."""
        if not isinstance(op, ReduceOp):
            return Folder(op, dtype)
        averaged = self._backend.size if op is ReduceOp.AVG else 0
        return self._folders.setdefault((op, dtype), Folder(op, dtype, averaged))
