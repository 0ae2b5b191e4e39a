"""The collectives on blocks of different sizes.

Counts are rows of axis 0, one number for each rank. ``None`` has the ranks exchange them first,
which blocks, also with ``async_op=True``.
"""

from typing import Any

import numpy as np

from hpccomm.buffers import check_dtype, check_layout, view
from hpccomm.communicator import demands
from hpccomm.communicator.core import Core
from hpccomm.communicator.demands import check_counts
from hpccomm.errors import BufferMismatch, UsageError
from hpccomm.reductions import Op, ReduceOp

SUM = ReduceOp.SUM


class Uneven(Core):
    """Every call is collective, with the rules of `Collectives`. The rows' shape is equal on all."""

    def all_gather_v(
        self,
        x: Any,
        counts: Any = None,
        *,
        out: Any = None,
        async_op: bool = False,
        timeout: float | None = None,
        algorithm: str | None = None,
        stream: object = None,
    ) -> Any:
        """Collect every rank's rows on every rank.

        Parameters
        ----------
        x : array, shape ``(counts[rank], *rest)``
            This rank's rows; it may be `out`'s block of this rank.
        counts : sequence of int, optional
            Rows of each rank; the same on all ranks. None exchanges them first.
        out : array, shape ``(sum(counts), *rest)``, optional
            Takes the result; None makes a new array.
        async_op : bool
            Return a `Work` at once instead. Equal on all ranks.
        timeout : float, optional
            Seconds; None is the communicator's, ``math.inf`` none.
        algorithm : str, optional
            None or ``"auto"``, or a name that `explain` and the error of an unknown name tell.
        stream : object, optional
            For device arrays.

        Returns
        -------
        array, shape ``(sum(counts), *rest)``
            The rows of all ranks, by rank; or a `Work`.

        Raises
        ------
        UsageError
            If an argument does not fit; before anything is sent.
        CommunicationError
            If the call fails or its deadline passes.
        """
        known = self._counts(counts, x, "x")
        return self._collective(
            "all_gather_v",
            demands.all_gather_v,
            x,
            out,
            counts=known,
            async_op=async_op,
            timeout=timeout,
            algorithm=algorithm,
            stream=stream,
        )

    def reduce_scatter_v(
        self,
        x: Any,
        counts: Any,
        op: Op = SUM,
        *,
        out: Any = None,
        async_op: bool = False,
        timeout: float | None = None,
        algorithm: str | None = None,
        deterministic: bool = False,
        stream: object = None,
    ) -> Any:
        """Reduce the arrays of all ranks; rank i gets counts[i] rows of the result.

        Parameters
        ----------
        x : array, shape ``(sum(counts), *rest)``
            This rank's contribution.
        counts : sequence of int
            Rows of each rank; the same on all ranks.
        op : ReduceOp, premul_sum(factor) or callable
            The reduction. A callable is commutative and elementwise, on two arrays; it may see
            slices, in any order.
        out : array, shape ``(counts[rank], *rest)``, optional
            Takes the result; None makes a new array. It may be x's block of this rank.
        async_op : bool
            Return a `Work` at once instead. Equal on all ranks.
        timeout : float, optional
            Seconds; None is the communicator's, ``math.inf`` none.
        algorithm : str, optional
            None or ``"auto"``, or a name that `explain` and the error of an unknown name tell.
        deterministic : bool
            Fold each element in rank order, so that the same input gives the same bits.
        stream : object, optional
            For device arrays.

        Returns
        -------
        array, shape ``(counts[rank], *rest)``
            The rows of this rank; or a `Work`.

        Raises
        ------
        UsageError
            If an argument does not fit; before anything is sent.
        CommunicationError
            If the call fails or its deadline passes.
        """
        known = check_counts("counts", counts, self._backend.size)
        return self._collective(
            "reduce_scatter_v",
            demands.reduce_scatter_v,
            x,
            out,
            op=op,
            counts=known,
            async_op=async_op,
            timeout=timeout,
            algorithm=algorithm,
            deterministic=deterministic,
            stream=stream,
        )

    def all_to_all_v(
        self,
        x: Any,
        send_counts: Any,
        recv_counts: Any = None,
        *,
        out: Any = None,
        async_op: bool = False,
        timeout: float | None = None,
        algorithm: str | None = None,
        stream: object = None,
    ) -> Any:
        """Send send_counts[j] rows to rank j, and receive recv_counts[j] rows from it.

        Parameters
        ----------
        x : array, shape ``(sum(send_counts), *rest)``
            The rows for each rank, by rank.
        send_counts : sequence of int
            Rows for each rank.
        recv_counts : sequence of int, optional
            Rows from each rank. None exchanges them first, on all ranks.
        out : array, shape ``(sum(recv_counts), *rest)``, optional
            Takes the result; None makes a new array. It may be x if as many rows come as go.
        async_op : bool
            Return a `Work` at once instead. Equal on all ranks.
        timeout : float, optional
            Seconds; None is the communicator's, ``math.inf`` none.
        algorithm : str, optional
            None or ``"auto"``, or a name that `explain` and the error of an unknown name tell.
        stream : object, optional
            For device arrays.

        Returns
        -------
        array, shape ``(sum(recv_counts), *rest)``
            The rows from each rank, by rank; or a `Work`.

        Raises
        ------
        UsageError
            If an argument does not fit; before anything is sent.
        CommunicationError
            If the call fails or its deadline passes.
        """
        known = check_counts("send_counts", send_counts, self._backend.size)
        if recv_counts is None:
            incoming = self._incoming(known)
        else:
            incoming = check_counts("recv_counts", recv_counts, self._backend.size)
        return self._collective(
            "all_to_all_v",
            demands.all_to_all_v,
            x,
            out,
            counts=known,
            recv_counts=incoming,
            async_op=async_op,
            timeout=timeout,
            algorithm=algorithm,
            stream=stream,
        )

    def gather_v(
        self,
        x: Any,
        root: int = 0,
        counts: Any = None,
        *,
        out: Any = None,
        async_op: bool = False,
        timeout: float | None = None,
        algorithm: str | None = None,
        stream: object = None,
    ) -> Any:
        """Collect every rank's rows at the root.

        Parameters
        ----------
        x : array, shape ``(counts[rank], *rest)``
            This rank's rows; at the root it may be `out`'s own block.
        root : int
            The rank that gets the result.
        counts : sequence of int, optional
            Rows of each rank; the same on all ranks. None exchanges them first.
        out : array, shape ``(sum(counts), *rest)``, optional
            At the root, takes the result; None makes a new array. Not used elsewhere.
        async_op : bool
            Return a `Work` at once instead. Equal on all ranks.
        timeout : float, optional
            Seconds; None is the communicator's, ``math.inf`` none.
        algorithm : str, optional
            None or ``"auto"``, or a name that `explain` and the error of an unknown name tell.
        stream : object, optional
            For device arrays.

        Returns
        -------
        array, shape ``(sum(counts), *rest)``, or None
            At the root the rows of all ranks, by rank, elsewhere None; or a `Work`.

        Raises
        ------
        UsageError
            If an argument does not fit; before anything is sent.
        CommunicationError
            If the call fails or its deadline passes.
        """
        known = self._counts(counts, x, "x")
        return self._collective(
            "gather_v",
            demands.gather_v,
            x,
            out,
            root=root,
            counts=known,
            async_op=async_op,
            timeout=timeout,
            algorithm=algorithm,
            stream=stream,
        )

    def scatter_v(
        self,
        x: Any,
        root: int = 0,
        counts: Any = None,
        *,
        out: Any = None,
        async_op: bool = False,
        timeout: float | None = None,
        algorithm: str | None = None,
        stream: object = None,
    ) -> Any:
        """Hand each rank its rows of the root's array.

        Parameters
        ----------
        x : array, shape ``(sum(counts), *rest)``, or None
            At the root. Not used elsewhere.
        root : int
            The rank that has the data.
        counts : sequence of int, optional
            Rows of each rank; the same on all ranks. None takes them from the ranks' `out`; the
            root's own may be None then, and gets what the others leave.
        out : array, shape ``(counts[rank], *rest)``, optional
            Takes this rank's rows. Required but at the root, where None makes a new array and it
            may be x's own block.
        async_op : bool
            Return a `Work` at once instead. Equal on all ranks.
        timeout : float, optional
            Seconds; None is the communicator's, ``math.inf`` none.
        algorithm : str, optional
            None or ``"auto"``, or a name that `explain` and the error of an unknown name tell.
        stream : object, optional
            For device arrays.

        Returns
        -------
        array, shape ``(counts[rank], *rest)``
            This rank's rows; or a `Work`.

        Raises
        ------
        UsageError
            If an argument does not fit; before anything is sent.
        CommunicationError
            If the call fails or its deadline passes.
        """
        if counts is None:
            known = self._wanted(x, out, demands.check_rank("root", root, self._backend.size))
        else:
            known = check_counts("counts", counts, self._backend.size)
        return self._collective(
            "scatter_v",
            demands.scatter_v,
            x,
            out,
            root=root,
            counts=known,
            async_op=async_op,
            timeout=timeout,
            algorithm=algorithm,
            stream=stream,
        )

    def _counts(self, counts: Any, array: Any, name: str) -> tuple[int, ...]:
        """Return `counts`, or each rank's number of rows of `array`."""
        if counts is not None:
            return check_counts("counts", counts, self._backend.size)
        return self._exchange(self._rows(array, name))

    def _rows(self, array: Any, name: str) -> int:
        # All that can be wrong with the array must be found before the exchange: afterwards the
        # other ranks would wait for this one.
        seen = view(array, name)
        check_dtype(name, seen.dtype)
        check_layout(seen, name, written=name == "out")
        if not seen.ndim:
            raise UsageError(f"{name} is 0-d; give an array with rows along axis 0")
        return int(seen.shape[0])

    def _exchange(self, number: int) -> tuple[int, ...]:
        self._may_exchange("counts")
        mine = np.array([number], np.int64)
        everyone = self._collective("all_gather", demands.all_gather, mine)
        return tuple(everyone.ravel().tolist())

    def _incoming(self, outgoing: tuple[int, ...]) -> tuple[int, ...]:
        self._may_exchange("recv_counts")
        mine = np.array(outgoing, np.int64)
        return tuple(self._collective("all_to_all", demands.all_to_all, mine).tolist())

    def _wanted(self, x: Any, out: Any, root: int) -> tuple[int, ...]:
        """Return the rows that each rank's out has; the root without one gets those that are left."""
        at_root = self._backend.rank == root
        if out is None and not at_root:
            rank = self._backend.rank
            raise UsageError(f"out is None on rank {rank}; scatter_v needs it but on the root")
        wanted = list(self._exchange(-1 if out is None else self._rows(out, "out")))
        if wanted[root] == -1:
            others = sum(wanted) + 1
            left = np.array([self._rows(x, "x") - others if at_root else 0], np.int64)
            self._collective("broadcast", demands.broadcast, left, root=root)
            wanted[root] = int(left[0])
            if wanted[root] < 0:
                raise BufferMismatch(
                    f"x has {-wanted[root]} rows less than the other ranks' out arrays take "
                    f"({others}); give an x with at least {others} rows"
                )
        return tuple(wanted)

    def _may_exchange(self, name: str) -> None:
        if self._batch is not None or (self._capture is not None and self._capture.local):
            where = "a batch" if self._batch is not None else "explain"
            raise UsageError(f"{name} is None in {where}, which sends nothing; give {name}")
