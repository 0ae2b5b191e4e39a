"""Counts that the user left out are exchanged.

Whatever is wrong with this rank's arguments must be found before the exchange: afterwards the other
ranks would wait for it.
"""

from typing import Any

import numpy as np

from hpccomm.communicator.core import Core
from hpccomm.communicator.resolving import Lists, check_counts, check_peers, row_shape
from hpccomm.contracts.collectives import CALLS
from hpccomm.errors import BufferMismatch, UsageError
from hpccomm.memory.views import check_dtype, check_layout, view
from hpccomm.topology import check_rank


class CountExchange:
    """Finds the counts of the uneven calls, as the user gave them or by an exchange."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def listed(self, name: str, counts: Any) -> Lists:
        """Return counts that the user must give.

        Raises
        ------
        UsageError
            If they are not one number of rows for each rank.
        """
        return Lists(check_counts(name, counts, self._core.backend.size))

    def row_counts(
        self,
        name: str,
        x: Any,
        out: Any,
        counts: Any,
        timeout: float | None,
        algorithm: str | None,
        stream: object,
        root: Any = None,
    ) -> Lists:
        """Return `counts`, or each rank's number of rows of x."""
        size = self._core.backend.size
        if counts is not None:
            return self.listed("counts", counts)
        rows = _row_count("x", x)
        self._rehearse(name, x, out, Lists((rows,) * size), timeout, algorithm, stream, root)
        known = Lists(self._exchanged(rows, timeout))
        self._agree_on_fit(name, x, out, known, root)
        return known

    def peer_lists(
        self,
        name: str,
        x: Any,
        out: Any,
        peers: Any,
        send_counts: Any,
        recv_counts: Any,
        timeout: float | None,
        algorithm: str | None,
        stream: object,
    ) -> Lists:
        """Return the peers of a call, with the rows of each block unless all are of one size."""
        lists = Lists(peers=check_peers(peers, self._core.backend.size))
        if send_counts is None and recv_counts is None:
            return lists
        if send_counts is None:
            raise UsageError("recv_counts is given and send_counts is not; give both, or none")
        sent = check_counts("send_counts", send_counts, len(lists.peers), "peer")
        lists = lists._replace(counts=sent)
        return self.pair_counts(name, x, out, lists, recv_counts, timeout, algorithm, stream)

    def pair_counts(
        self,
        name: str,
        x: Any,
        out: Any,
        outgoing: Lists,
        recv_counts: Any,
        timeout: float | None,
        algorithm: str | None,
        stream: object,
    ) -> Lists:
        """Return `outgoing` with `recv_counts`, or with the rows that come for each block."""
        if recv_counts is not None:
            whose = "peer" if CALLS[name].peers else "rank"
            incoming = check_counts("recv_counts", recv_counts, len(outgoing.counts), whose)
            return outgoing._replace(recv_counts=incoming)
        pretended = outgoing._replace(recv_counts=outgoing.counts)
        self._rehearse(name, x, out, pretended, timeout, algorithm, stream)
        self._refuse_exchange("recv_counts")
        mine = np.array(outgoing.counts, np.int64)
        lists = Lists(peers=outgoing.peers)
        arrived = self._core.collective(CALLS[name].name, mine, timeout=timeout, lists=lists)
        known = outgoing._replace(recv_counts=tuple(arrived.tolist()))
        self._agree_on_fit(name, x, out, known)
        return known

    def wanted_counts(
        self,
        x: Any,
        out: Any,
        root: Any,
        counts: Any,
        timeout: float | None,
        algorithm: str | None,
        stream: object,
    ) -> Lists:
        """Return `counts`, or the rows of each rank's out; a root without one gets what is left."""
        rank, size = self._core.backend.rank, self._core.backend.size
        if counts is not None:
            return self.listed("counts", counts)
        at_root = rank == check_rank("root", root, size)
        if out is None and not at_root:
            raise UsageError(
                f"out is None on rank {rank}; scatter_v requires out on every rank except the root"
            )
        available = _row_count("x", x) if at_root else 0
        rows = available if out is None else _row_count("out", out)
        rest = available - rows if at_root else 0
        if rest < 0:
            raise BufferMismatch(
                f"out has {rows} rows and x has {available}; x has those of all ranks"
            )
        pretended = [0] * size
        pretended[rank - 1] = rest  # some other rank's, if there is one
        pretended[rank] = rows
        fits = None if at_root else out
        lists = Lists(tuple(pretended))
        self._rehearse("scatter_v", x, fits, lists, timeout, algorithm, stream, root)
        wanted = list(self._exchanged(-1 if out is None else rows, timeout))
        if wanted[root] == -1:
            taken = sum(wanted) + 1
            left = np.array([available - taken], np.int64)
            self._core.collective("broadcast", left, root=root, timeout=timeout)
            wanted[root] = int(left[0])
        known = Lists(tuple(wanted))
        self._agree_on_fit("scatter_v", x, out, known, root)
        return known

    def _rehearse(
        self,
        name: str,
        x: Any,
        out: Any,
        lists: Lists,
        timeout: float | None,
        algorithm: str | None,
        stream: object,
        root: Any = None,
    ) -> None:
        """Raise what the call would raise with such counts, whatever the other ranks give."""
        self._core.limit(timeout)
        fits = out if name == "scatter_v" else None  # elsewhere its size is not known yet
        _, array, _ = self._core.recipes.find(name, x, fits, None, root, lists, False, algorithm)
        if stream is not None:
            self._core.lanes.views(x if out is None else None, out)[0].queue_of(stream)
        for which, argument in (("x", x), ("out", out)):
            if argument is not None:
                seen = view(argument, which)
                check_dtype(which, seen.dtype)
                check_layout(seen, which, written=which == "out")
                if array is not None and seen.dtype != array.dtype:
                    raise BufferMismatch(f"out has dtype {seen.dtype}; give dtype {array.dtype}")

    def _agree_on_fit(self, name: str, x: Any, out: Any, lists: Lists, root: Any = None) -> None:
        """Raise on every rank if the arrays of one do not fit what was exchanged."""
        error: UsageError | None = None
        least = min(lists.counts, default=0)
        try:
            if least < 0:
                raise BufferMismatch(
                    f"x has {-least} rows less on the root than the other ranks' out arrays "
                    "take; give an x with more rows"
                )
            self._core.recipes.find(name, x, out, None, root, lists)
        except UsageError as refused:
            error = refused
        with self._core.calls.one_call():
            self._core.agree(name, {}, error)

    def _exchanged(self, number: int, timeout: float | None) -> tuple[int, ...]:
        """Return every rank's number."""
        self._refuse_exchange("counts")
        mine = np.array([number], np.int64)
        everyone = self._core.collective("all_gather", mine, timeout=timeout)
        return tuple(everyone.ravel().tolist())

    def _refuse_exchange(self, name: str) -> None:
        """Raise where calls are not issued when they are made."""
        intake = self._core.intake
        if intake.diverted:
            where = "a batch" if intake.batch is not None else "plan or explain"
            raise UsageError(f"{name} is None in {where}, which cannot exchange it; give {name}")


def _row_count(name: str, array: Any) -> int:
    if array is None:
        raise UsageError(f"{name} is None; give an array")
    shape = view(array, name).shape
    row_shape(name, shape)  # which refuses an array without rows
    return int(shape[0])
