"""The required behaviour of every backend with device arrays: the suite on mirrors, and more.

The suite of host arrays runs unchanged on device arrays, through `hpccomm.testing.on_device`. The
one table below leaves out cases without a meaning there, or with another one; the files beside this
one have their device form, and take device arrays themselves.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from hpccomm.testing.conformance.devices import (
    asynchronous,
    choices,
    failures,
    graphs,
    registered,
    streams,
)
from hpccomm.testing.mirrored import on_device

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hpccomm.communicator import Communicator
    from hpccomm.testing.conformance.case import Case

NCCL, MPI, STAGED = "nccl", "mpi", "staged"

PATHS = (NCCL, MPI, STAGED)
"""The values of ``comm.backends["cuda"]``."""

SECTIONS = (
    streams.STREAMS,
    asynchronous.ASYNCHRONOUS,
    choices.CHOICES,
    graphs.GRAPHS,
    registered.REGISTERED,
    failures.FAILURES,
)
"""Cases of device arrays only, simplest first and failing communicators last."""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Cases that are not run on device arrays.

    Attributes
    ----------
    names : str
        Beginnings of their names, with blanks between.
    paths : tuple of str
        Where they are left out.
    reason : str
        Why.
    """

    names: str
    paths: tuple[str, ...]
    reason: str

    def has(self, name: str, path: str) -> bool:
        """Tell whether a case is among them."""
        return path in self.paths and name.startswith(tuple(self.names.split()))


LEFT_OUT = (
    LeftOut("windows. atomics.", PATHS, "one-sided calls are for host memory"),
    LeftOut("arrivals.", PATHS, "only messages of host arrays and objects are looked for"),
    LeftOut("locations.", PATHS, "values with their indices are reduced on the host"),
    LeftOut("shared_memory.", PATHS, "what ranks of a node share is host memory"),
    LeftOut("registered.", PATHS, "of the host's memory; devices.registered is of the device's"),
    LeftOut(
        "objects. groups.facts groups.split_ranks_that collectives.barrier_waits "
        "algorithms.barriers failures.with_ failures.recv_object failures.object_ "
        "failures.an_exception_leaves",
        PATHS,
        "no array takes part",
    ),
    LeftOut("algorithms.the_setting", (NCCL,), "NCCL has no segments"),
    LeftOut(
        "algorithms.counts algorithms.large_arrays algorithms.dtypes "
        "algorithms.reductions algorithms.ranks_in deterministic.neither",
        (STAGED,),
        "the host path carries them out, as the suite of host arrays tests it",
    ),
    LeftOut(
        "reductions.nan_spreads", (NCCL,), "what MIN and MAX make of a NaN is NCCL's affair there"
    ),
    LeftOut(
        "messages.tags_tell messages.messages_from_any_memory",
        (NCCL,),
        "NCCL has no tags",
    ),
    LeftOut(
        "messages.messages_of_a_plan",
        PATHS,
        "messages of plans on device arrays go with others, of host arrays separately",
    ),
    LeftOut(
        "messages.a_message_of_another messages.a_large_message_of_another",
        (NCCL,),
        "a message of NCCL's does not say its size",
    ),
    LeftOut(
        "messages.messages_and_collectives_mix groups.dup failures.wait_times_out failures.waits_that_end",
        (NCCL,),
        "messages of NCCL that are not in one batch follow one another on a stream: a "
        "receive that stands before the send that its peer waits for never ends",
    ),
    LeftOut(
        "failures.a_plan_times_out failures.recv_times_out failures.collectives_time_out "
        "failures.the_default_dead failures.the_deadline_of failures.a_call_behind_one",
        (NCCL,),
        "a call that does not block cannot raise its own timeout; devices.failures has its action",
    ),
    LeftOut(
        "failures.large_send failures.abort_releases_waits failures.two_threads_at_once",
        (NCCL,),
        "a synchronous call does not block the host",
    ),
    LeftOut(
        "failures.arrays_of_different_sizes",
        (NCCL,),
        "NCCL does not look whether the ranks' calls fit each other",
    ),
    LeftOut(
        "devices.graphs.replayed devices.graphs.captured "
        "devices.streams.the_host_goes_on devices.failures.a_call_that_does_not_block",
        (MPI, STAGED),
        "the host takes part in each call",
    ),
    LeftOut("devices.graphs.refused", (NCCL,), "NCCL's calls are captured"),
    LeftOut(
        "devices.asynchronous.wait_does_not_hold",
        (MPI, STAGED),
        "what the host has yet to do cannot be put on a stream",
    ),
)
"""The cases that are not run, and why."""


def device_cases(path: str, *, devices_own: bool = True) -> tuple[Case, ...]:
    """Return the cases for communicators whose device arrays go by `path`.

    Each takes the communicator itself; it needs a device path.

    Parameters
    ----------
    path : str
        ``comm.backends["cuda"]``: ``"nccl"``, ``"mpi"`` (CUDA-aware) or ``"staged"``.
    devices_own : bool
        Leave out, if False, what only devices have.

    Returns
    -------
    tuple of Case
        Names are unique; the host suite's names are unchanged.
    """
    from hpccomm.testing.conformance import cases

    own = [case for section in SECTIONS for case in section.cases()] if devices_own else []
    every = [*map(mirrored, cases()), *own]
    return tuple(case for case in every if left_out(case.name, path) is None)


def left_out(name: str, path: str, table: Sequence[LeftOut] = LEFT_OUT) -> str | None:
    """Return why a case is not run on device arrays that go by `path`, or None if it is."""
    return next((each.reason for each in table if each.has(name, path)), None)


def mirrored(case: Case) -> Case:
    """Return a case of host arrays as one of device arrays."""
    return replace(case, function=partial(_mirrored, case.function))


def _mirrored(function: Callable[..., None], comm: Communicator, **arguments: Any) -> None:
    function(on_device(comm), **arguments)


def unused(cases: Sequence[Case], table: Sequence[LeftOut] = LEFT_OUT) -> list[str]:
    """Return the prefixes in `table` that match no case."""
    names = [case.name for case in cases]
    return [
        beginning
        for each in table
        for beginning in each.names.split()
        if not any(name.startswith(beginning) for name in names)
    ]
