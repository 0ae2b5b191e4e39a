"""The communicators that one is made of and that are made of it, and their end."""

import json
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING
from zlib import crc32

from hpccomm.communicator.core import Core
from hpccomm.communicator.lanes import DeviceLane, RefusingLane
from hpccomm.communicator.windows import WindowMaker
from hpccomm.contracts.backend import Backend
from hpccomm.errors import CommunicatorAborted, RankMismatch, UsageError
from hpccomm.settings import Settings, check_int, check_name
from hpccomm.topology import check_rank

if TYPE_CHECKING:
    from hpccomm.communicator.communicator import Communicator

Make = Callable[
    [Backend, str, Settings, int | None, DeviceLane | RefusingLane, tuple[int, ...]],
    "Communicator",
]
"""Makes the communicator over a backend; see `making.make`."""

SHRUNK = 1 << 14
"""Labels of shrunk communicators begin here, and end at twice as much."""


class GroupCalls:
    """Makes communicators over some of the ranks of one, and ends it.

    Parameters
    ----------
    core : Core
        Of the one.
    windows : WindowMaker
        Has its windows.
    node_comm : Communicator or None
        That of this node; None where it is itself that of a node.
    make : callable
        Makes a communicator over a backend.
    """

    def __init__(
        self, core: Core, windows: WindowMaker, node_comm: "Communicator | None", make: Make
    ) -> None:
        self.node_comm = node_comm
        self._core = core
        self._windows = windows
        self._make = make
        self._groups = 0  # how many were made of this one, by all its ranks
        self._shrunk: Counter[tuple[int, ...]] = Counter()  # and by all but those

    def split(self, color: int | None, key: int, name: str | None) -> "Communicator | None":
        """Make a communicator of the ranks that give the same `color`."""
        mine, error = dict[str, object](), None
        try:
            mine = {
                "color": None if color is None else check_int("color", color),
                "key": check_int("key", key),
            }
            check_name(name)
        except UsageError as wrong:
            mine, error = {"error": str(wrong)}, wrong
        core = self._core
        with core.calls.one_call():
            with core.calls.part_of("split"):
                arguments = [
                    json.loads(each) for each in core.control.all_gather(json.dumps(mine).encode())
                ]
                if error is not None:
                    raise error
                refused = {r: each["error"] for r, each in enumerate(arguments) if "error" in each}
                if refused:
                    whom = "; ".join(f"rank {rank}: {text}" for rank, text in refused.items())
                    raise RankMismatch(f"split: {whom}", ranks=tuple(refused))
            if color is None:
                self._groups += 1
                return None
            members = sorted(
                (rank for rank, each in enumerate(arguments) if each["color"] == mine["color"]),
                key=lambda rank: (arguments[rank]["key"], rank),
            )
            return self._group(members, name, f"split{{}}({color})")

    def split_ranks(self, ranks: Iterable[int], name: str | None) -> "Communicator | None":
        """Make a communicator of `ranks`, in that order."""
        core, error, members = self._core, None, list[int]()
        try:
            members = [check_rank("ranks", rank, core.backend.size) for rank in ranks]
            check_name(name)
            if not members or len(set(members)) != len(members):
                raise UsageError(f"ranks is {members}; give at least one rank, none of them twice")
        except UsageError as refused:
            error = refused
        except TypeError:
            error = UsageError(f"ranks is {ranks!r}; give a sequence of ranks")
        with core.calls.one_call():
            core.agree("split_ranks", {"ranks": members}, error)
            if core.backend.rank not in members:
                self._groups += 1
                return None
            return self._group(members, name, "ranks{}")

    def dup(self, name: str | None) -> "Communicator":
        """Make a communicator of the same ranks."""
        check_name(name)
        with self._core.calls.one_call():
            return self._group(list(range(self._core.backend.size)), name, "dup{}")

    def shrink(self, exclude: Iterable[int], name: str | None) -> "Communicator":
        """Make a communicator of all ranks but some."""
        calls, size, rank = self._core.calls, self._core.backend.size, self._core.backend.rank
        try:
            left_out = tuple(sorted({check_rank("exclude", each, size) for each in exclude}))
        except TypeError:
            raise UsageError(f"exclude is {exclude!r}; give a sequence of ranks") from None
        check_name(name)
        if not left_out or rank in left_out:
            raise UsageError(
                f"exclude is {list(left_out)} on rank {rank} of {size}; give at least one rank, and have "
                "only those that are not in it call shrink"
            )
        with calls.one_call():
            members = [each for each in range(size) if each not in left_out]
            # The ranks that are left out know nothing of it, and count on: nor may the others count it.
            self._shrunk[left_out] += 1
            number = self._shrunk[left_out]
            label = SHRUNK + crc32(repr((list(left_out), number)).encode()) % SHRUNK
            named = name or f"{calls.name}.without({','.join(map(str, left_out))}){number}"
            return self._over(members, label, named, left_out)

    def _group(self, members: list[int], name: str | None, kind: str) -> "Communicator":
        self._groups += 1
        label = self._groups
        return self._over(members, label, name or f"{self._core.calls.name}.{kind.format(label)}")

    def _over(
        self, members: list[int], label: int, name: str, left_out: tuple[int, ...] = ()
    ) -> "Communicator":
        core = self._core
        with core.calls.beside_watchdog("making a group"):
            backend = core.backend.group(members, label)
        settings = replace(core.settings, timeout=core.calls.timeout)
        return self._make(backend, name, settings, core.device, core.lanes.device, left_out)

    def finalize(self) -> None:
        """End the communicator."""
        calls = self._core.calls
        if calls.closed:
            return
        if calls.gate.error is not None:
            self.abort()  # its node's too: nothing may need a peer
            calls.closed = "is finalized"
            unraised, calls.failure.unraised = calls.failure.unraised, None
            if unraised is not None:
                raise unraised
            return
        with calls.one_call():
            calls.finish()
        self._windows.close()
        if self.node_comm is not None:
            self.node_comm.finalize()
        self._core.lanes.device.close()
        calls.closed = "is finalized"
        with calls.beside_watchdog("finalize"):
            self._core.backend.close()

    def abort(self) -> None:
        """End this process's waits and mark the communicator as failed."""
        calls = self._core.calls
        calls.fail(
            CommunicatorAborted(
                f"communicator {calls.name!r} was aborted",
                communicator=calls.name,
                rank=self._core.backend.rank,
            )
        )
        if self.node_comm is not None:
            self.node_comm.abort()
