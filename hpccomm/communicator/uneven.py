"""The collectives on blocks of different sizes.

Counts are rows of axis 0, one number for each rank. ``None`` has the ranks exchange them first,
which blocks, also with ``async_op=True``.
"""

from typing import Any

import numpy as np

from hpccomm.communicator.core import Core
from hpccomm.communicator.resolving import check_counts
from hpccomm.errors import BufferMismatch, UsageError
from hpccomm.memory.views import check_dtype, check_layout, view
from hpccomm.reductions import Op, ReduceOp
from hpccomm.topology import check_rank

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
            None, ``"auto"``, or an algorithm name; an unknown one raises an error that lists the valid ones.
        stream : object, optional
            For device arrays: a CuPy stream, its number, or an object with ``__cuda_stream__``. None is
            the current one of the array's framework.

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
        known = self._row_counts(
            "all_gather_v",
            x,
            out,
            counts,
            timeout=timeout,
            algorithm=algorithm,
            stream=stream,
        )
        return self._collective(
            "all_gather_v",
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
            slices, in any order, and leaves them as they are.
        out : array, shape ``(counts[rank], *rest)``, optional
            Takes the result; None makes a new array. It may be x's block of this rank.
        async_op : bool
            Return a `Work` at once instead. Equal on all ranks.
        timeout : float, optional
            Seconds; None is the communicator's, ``math.inf`` none.
        algorithm : str, optional
            None, ``"auto"``, or an algorithm name; an unknown one raises an error that lists the valid ones.
        deterministic : bool
            Fold each element in rank order, so that the same input gives the same bits.
        stream : object, optional
            For device arrays: a CuPy stream, its number, or an object with ``__cuda_stream__``. None is
            the current one of the array's framework.

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
            None, ``"auto"``, or an algorithm name; an unknown one raises an error that lists the valid ones.
        stream : object, optional
            For device arrays: a CuPy stream, its number, or an object with ``__cuda_stream__``. None is
            the current one of the array's framework.

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
            incoming = self._incoming(
                x, out, known, timeout=timeout, algorithm=algorithm, stream=stream
            )
        else:
            incoming = check_counts("recv_counts", recv_counts, self._backend.size)
        return self._collective(
            "all_to_all_v",
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
            None, ``"auto"``, or an algorithm name; an unknown one raises an error that lists the valid ones.
        stream : object, optional
            For device arrays: a CuPy stream, its number, or an object with ``__cuda_stream__``. None is
            the current one of the array's framework.

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
        known = self._row_counts(
            "gather_v",
            x,
            out,
            counts,
            root=root,
            timeout=timeout,
            algorithm=algorithm,
            stream=stream,
        )
        return self._collective(
            "gather_v",
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
            None, ``"auto"``, or an algorithm name; an unknown one raises an error that lists the valid ones.
        stream : object, optional
            For device arrays: a CuPy stream, its number, or an object with ``__cuda_stream__``. None is
            the current one of the array's framework.

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
            known = self._wanted(x, out, root, timeout=timeout, algorithm=algorithm, stream=stream)
        else:
            known = check_counts("counts", counts, self._backend.size)
        return self._collective(
            "scatter_v",
            x,
            out,
            root=root,
            counts=known,
            async_op=async_op,
            timeout=timeout,
            algorithm=algorithm,
            stream=stream,
        )

    # Counts that nobody gave are exchanged. Whatever is wrong with this rank's arguments must be
    # found before: afterwards the other ranks would wait for it.

    def _row_counts(
        self, name: str, x: Any, out: Any, counts: Any, **others: Any
    ) -> tuple[int, ...]:
        """Return `counts`, or each rank's number of rows of x."""
        if counts is not None:
            return check_counts("counts", counts, self._backend.size)
        rows = _rows("x", x)
        self._rehearse(name, x, out, (rows,) * self._backend.size, **others)
        known = self._exchange("counts", rows, others["timeout"])
        self._agree_on_fit(name, x, out, known, root=others.get("root"))
        return known

    def _incoming(
        self, x: Any, out: Any, outgoing: tuple[int, ...], **others: Any
    ) -> tuple[int, ...]:
        """Return the rows that come from each rank."""
        self._rehearse("all_to_all_v", x, out, outgoing, outgoing, **others)
        self._may_exchange("recv_counts")
        mine = np.array(outgoing, np.int64)
        got = self._collective("all_to_all", mine, timeout=others["timeout"])
        incoming = tuple(got.tolist())
        self._agree_on_fit("all_to_all_v", x, out, outgoing, incoming)
        return incoming

    def _wanted(self, x: Any, out: Any, root: Any, **others: Any) -> tuple[int, ...]:
        """Return the rows that each rank's out has; a root without one gets those that are left."""
        rank, size = self._backend.rank, self._backend.size
        at_root = rank == check_rank("root", root, size)
        if out is None and not at_root:
            raise UsageError(f"out is None on rank {rank}; scatter_v needs it but on the root")
        given = _rows("x", x) if at_root else 0
        rows = given if out is None else _rows("out", out)
        rest = given - rows if at_root else 0
        if rest < 0:
            raise BufferMismatch(f"out has {rows} rows and x has {given}; x has those of all ranks")
        pretended = [0] * size
        pretended[rank - 1] = rest  # some other rank's, if there is one
        pretended[rank] = rows
        self._rehearse(
            "scatter_v",
            x,
            None if at_root else out,
            tuple(pretended),
            root=root,
            **others,
        )
        timeout = others["timeout"]
        wanted = list(self._exchange("counts", -1 if out is None else rows, timeout))
        if wanted[root] == -1:
            taken = sum(wanted) + 1
            left = np.array([given - taken], np.int64)
            self._collective("broadcast", left, root=root, timeout=timeout)
            wanted[root] = int(left[0])
        known = tuple(wanted)
        self._agree_on_fit("scatter_v", x, out, known, root=root)
        return known

    def _rehearse(
        self,
        name: str,
        x: Any,
        out: Any,
        counts: tuple[int, ...],
        recv_counts: tuple[int, ...] = (),
        *,
        root: Any = None,
        timeout: float | None = None,
        algorithm: str | None = None,
        stream: object = None,
    ) -> None:
        """Raise what the call would raise with such counts, whatever the other ranks give."""
        self._timeout(timeout)
        fits = out if name == "scatter_v" else None  # elsewhere its size is not known yet
        _, array, _ = self._recipe(name, x, fits, None, root, counts, recv_counts, False, algorithm)
        if stream is not None:
            self._check_stream(stream, array if out is None else view(out, "out"))
        for which, given in (("x", x), ("out", out)):
            if given is not None:
                seen = view(given, which)
                check_dtype(which, seen.dtype)
                check_layout(seen, which, written=which == "out")
                if array is not None and seen.dtype != array.dtype:
                    raise BufferMismatch(f"out has dtype {seen.dtype}; give dtype {array.dtype}")

    def _agree_on_fit(
        self,
        name: str,
        x: Any,
        out: Any,
        counts: tuple[int, ...],
        recv_counts: tuple[int, ...] = (),
        *,
        root: Any = None,
    ) -> None:
        """Raise on every rank if the arrays of one do not fit what was exchanged."""
        error: UsageError | None = None
        try:
            if min(counts) < 0:
                raise BufferMismatch(
                    f"x has {-min(counts)} rows less on the root than the other ranks' out arrays "
                    "take; give an x with more rows"
                )
            self._recipe(name, x, out, None, root, counts, recv_counts)
        except UsageError as refused:
            error = refused
        with self._one_call():
            self._agree(name, {} if error is None else {"error": str(error)}, error)

    def _exchange(self, name: str, number: int, timeout: float | None) -> tuple[int, ...]:
        self._may_exchange(name)
        mine = np.array([number], np.int64)
        everyone = self._collective("all_gather", mine, timeout=timeout)
        return tuple(everyone.ravel().tolist())

    def _may_exchange(self, name: str) -> None:
        if self._batch is not None or self._capture is not None:
            where = "a batch" if self._batch is not None else "plan or explain"
            raise UsageError(f"{name} is None in {where}, which cannot exchange it; give {name}")


def _rows(name: str, array: Any) -> int:
    if array is None:
        raise UsageError(f"{name} is None; give an array")
    shape = view(array, name).shape
    if not shape:
        raise UsageError(f"{name} is 0-d; give an array with rows along axis 0")
    return int(shape[0])
