"""Cases: misuse is refused before anything is sent; hpccomm does it, on any backend.

A case misuses the communicator on its last rank alone. The others go straight on to a collective of
all ranks, which would fail or hang had the misuse sent anything.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from hpccomm.errors import UsageError
from hpccomm.testing.conformance.case import Behaviours
from hpccomm.testing.conformance.check import raises

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hpccomm.communicator import Communicator

MISUSE = Behaviours("misuse")


class Attempt(Protocol):
    """Makes a call that must be refused."""

    def __call__(
        self,
        name: str,
        error: type[BaseException],
        words: tuple[str, ...],
        call: Callable[..., object],
        *arguments: Any,
    ) -> None:
        """Assert that ``call(*arguments)`` raises `error` with a message that holds `words`."""


@contextmanager
def refused(comm: Communicator) -> Iterator[Attempt]:
    """Misuse `comm` in the block, on its last rank, and prove afterwards that nothing was sent.

    Collective over `comm`.

    Yields
    ------
    Attempt
        Does nothing on the other ranks.
    """
    faults: list[str] = []

    def attempt(
        name: str,
        error: type[BaseException],
        words: tuple[str, ...],
        call: Callable[..., object],
        *arguments: Any,
    ) -> None:
        if comm.rank == comm.size - 1:
            try:
                with raises(error, *words):
                    call(*arguments)
            except Exception as fault:  # noqa: BLE001 (asserted below)
                faults.append(f"{name}: {type(fault).__name__}: {fault}")

    yield attempt
    assert not faults, "\n".join(faults)
    x = np.array([comm.rank, 1])
    comm.all_reduce(x)
    assert x.tolist() == [sum(range(comm.size)), comm.size], "all_reduce after the misuse"
    assert comm.all_gather_object(comm.rank) == list(range(comm.size)), "objects after the misuse"


@MISUSE.behaviour()
def ranks_and_tags(comm: Communicator) -> None:
    """A partner is a rank or None; a tag an integer of at least 0."""
    x, out = np.ones(2), np.ones(2)
    last = str(comm.size - 1)
    with refused(comm) as attempt:
        for rank in (comm.size, -1, 0.5, "0"):
            calls: tuple[tuple[Any, ...], ...] = (
                ("send", "dst", comm.send, x, rank),
                ("recv", "src", comm.recv, out, rank),
                ("send_recv to", "dst", comm.send_recv, x, rank, out, 0),
                ("send_recv from", "src", comm.send_recv, x, 0, out, rank),
            )
            for name, partner, call, *arguments in calls:
                attempt(name, UsageError, (partner, repr(rank), last), call, *arguments)
        for tag in (-1, 1.5, "a", None, 1 << 40):
            words = ("tag", repr(tag))
            attempt("send", UsageError, words, comm.send, x, 0, tag)
            attempt("recv", UsageError, words, comm.recv, out, 0, tag)
            attempt("send_recv", UsageError, words, comm.send_recv, x, 0, out, 0, tag)
