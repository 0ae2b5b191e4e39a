"""Making communicators of other ones, and ending them."""

import json
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING
from zlib import crc32

from hpccomm.communicator.core import Core
from hpccomm.communicator.devices import Devices
from hpccomm.errors import CommunicatorAborted, RankMismatch, UsageError
from hpccomm.settings import check_int, check_name
from hpccomm.topology import check_rank

if TYPE_CHECKING:
    from hpccomm.communicator.communicator import Communicator


SHRUNK = 1 << 14
"""Labels of shrunk communicators begin here, and end at twice as much."""


class Groups(Core):
    """Communicators over some of the ranks. A new one shares nothing with its parent."""

    def split(
        self, color: int | None, key: int = 0, name: str | None = None
    ) -> "Communicator | None":
        """Make a communicator of the ranks that give the same `color`. Collective; blocks.

        Parameters
        ----------
        color : int or None
            Which group; None takes part in none.
        key : int
            Ranks are ordered by key, then by rank.
        name : str, optional
            Of the new communicator.

        Returns
        -------
        Communicator or None
            None for the color None.

        Raises
        ------
        UsageError
            If this rank's arguments do not fit.
        RankMismatch
            On every other rank then.
        """
        mine, error = dict[str, object](), None
        try:
            mine = {
                "color": None if color is None else check_int("color", color),
                "key": check_int("key", key),
            }
            check_name(name)
        except UsageError as wrong:
            mine, error = {"error": str(wrong)}, wrong
        with self._one_call():
            with self._calls.told("split", 0):
                told = self._control.all_gather(json.dumps(mine).encode())
                asked = [json.loads(each) for each in told]
                if error is not None:
                    raise error
                refused = {r: each["error"] for r, each in enumerate(asked) if "error" in each}
                if refused:
                    whom = "; ".join(f"rank {rank}: {text}" for rank, text in refused.items())
                    raise RankMismatch(f"split: {whom}", ranks=tuple(refused))
            if color is None:
                self._groups += 1
                return None
            members = sorted(
                (rank for rank, each in enumerate(asked) if each["color"] == mine["color"]),
                key=lambda rank: (asked[rank]["key"], rank),
            )
            return self._group(members, name, f"split{{}}({color})")

    def split_ranks(self, ranks: Iterable[int], name: str | None = None) -> "Communicator | None":
        """Make a communicator of `ranks`, in that order. Called by all ranks of this one; blocks.

        Parameters
        ----------
        ranks : sequence of int
            The same on all ranks.
        name : str, optional
            Of the new communicator.

        Returns
        -------
        Communicator or None
            None on the ranks that are not in it.

        Raises
        ------
        UsageError
            If this rank's arguments do not fit.
        RankMismatch
            On every other rank then, and on all if their lists differ.
        """
        error, members = None, list[int]()
        try:
            members = [check_rank("ranks", rank, self._backend.size) for rank in ranks]
            check_name(name)
            if not members or len(set(members)) != len(members):
                raise UsageError(f"ranks is {members}; give at least one rank, none of them twice")
        except (UsageError, TypeError) as refused:
            error = (
                refused
                if isinstance(refused, UsageError)
                else UsageError(f"ranks is {ranks!r}; give a sequence of ranks")
            )
        with self._one_call():
            mine: dict[str, object] = {"ranks": members}
            if error is not None:
                mine = {"error": str(error)}
            self._agree("split_ranks", mine, error)
            if self._backend.rank not in members:
                self._groups += 1
                return None
            return self._group(members, name, "ranks{}")

    def dup(self, name: str | None = None) -> "Communicator":
        """Make a communicator of the same ranks. Collective; blocks.

        Parameters
        ----------
        name : str, optional
            Of the new communicator.

        Returns
        -------
        Communicator
            Ended by itself.
        """
        check_name(name)
        with self._one_call():
            everyone = list(range(self._backend.size))
            return self._group(everyone, name, "dup{}")

    def shrink(self, exclude: Iterable[int], name: str | None = None) -> "Communicator":
        """Make a communicator of all ranks but some. Called by those that stay; blocks.

        The excluded ranks take no part, and need not be there any more. The new communicator's ranks
        are in the order of this one's. Over NCCL, its own shrink makes the device side where the
        library has that (2.27 and later), which is quicker than to begin anew.

        Parameters
        ----------
        exclude : sequence of int
            Ranks to leave out, at least one; the same on all ranks that stay.
        name : str, optional
            Of the new communicator.

        Returns
        -------
        Communicator
            Ended by itself.

        Raises
        ------
        UsageError
            If an argument does not fit, or this rank is excluded.
        """
        size, rank = self._backend.size, self._backend.rank
        try:
            left_out = sorted({check_rank("exclude", each, size) for each in exclude})
        except TypeError:
            raise UsageError(f"exclude is {exclude!r}; give a sequence of ranks") from None
        check_name(name)
        if not left_out or rank in left_out:
            raise UsageError(
                f"exclude is {left_out} on rank {rank} of {size}; give at least one rank, and have only "
                "those that are not in it call shrink"
            )
        with self._one_call():
            members = [each for each in range(size) if each not in left_out]
            # The ranks that are left out know nothing of it, and count on: nor may the others count it.
            self._shrunk[tuple(left_out)] += 1
            number = self._shrunk[tuple(left_out)]
            label = SHRUNK + crc32(repr((left_out, number)).encode()) % SHRUNK
            told = name or f"{self._calls.name}.without({','.join(map(str, left_out))}){number}"
            return self._over(members, label, told, tuple(left_out))

    @property
    def node_comm(self) -> "Communicator":
        """The communicator of this node's ranks, made together with this one."""
        if self._node_comm is None:  # it is itself that of a node
            return self  # type: ignore[return-value]  # every Groups is a Communicator
        return self._node_comm

    def _group(self, members: list[int], name: str | None, kind: str) -> "Communicator":
        self._groups += 1
        label = self._groups
        return self._over(members, label, name or f"{self._calls.name}.{kind.format(label)}")

    def _over(
        self, members: list[int], label: int, name: str, left_out: tuple[int, ...] = ()
    ) -> "Communicator":
        with self._calls.beside_watchdog("making a group"):
            backend = self._backend.group(members, label)
        settings = replace(self._settings, timeout=self._calls.timeout)
        return self._make(backend, name, settings, self._device, self._devices, left_out)

    def finalize(self) -> None:
        """End the communicator. Collective; blocks; idempotent. Asynchronous calls are awaited.

        If it has failed, only what needs no peer is done.

        Raises
        ------
        CommunicationError
            If calls on device arrays have failed since the last one was made, which nothing has told so
            far: what they should have filled is undefined.
        """
        calls = self._calls
        if calls.closed:
            return
        if calls.gate.error is not None:
            self.abort()  # its node's too: nothing may need a peer
            calls.close("is finalized")
            untold, calls.untold = calls.untold, None
            if untold is not None:
                raise untold
            return
        with self._one_call():
            calls.finish()
        for window in self._windows:
            window.close()
        if self._node_comm is not None:
            self._node_comm.finalize()
        if isinstance(self._devices, Devices):
            self._devices.close()
        calls.close("is finalized")
        with calls.beside_watchdog("finalize"):
            self._backend.close()

    def abort(self) -> None:
        """End this process's waits and mark the communicator as failed. Local; from any thread.

        Calls that wait, and asynchronous ones under way, end with `CommunicatorAborted`; one that
        is blocked in the MPI library goes on to its deadline. Over NCCL, calls under way are ended on
        the device, so that its streams go on; what they leave in their arrays is undefined. Arrays in
        flight are kept.
        """
        self._calls.fail(
            CommunicatorAborted(
                f"communicator {self._calls.name!r} was aborted",
                communicator=self._calls.name,
                rank=self._backend.rank,
            )
        )
        if self._node_comm is not None:
            self._node_comm.abort()
