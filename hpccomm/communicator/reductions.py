"""The collectives on blocks of one size that reduce."""

from typing import Any

from hpccomm.communicator.face import Face
from hpccomm.reductions import Op, ReduceOp

SUM = ReduceOp.SUM


class Reductions(Face):
    """Every call is collective, with the rules of `Collectives`."""

    def all_reduce(
        self,
        x: Any,
        op: Op = SUM,
        *,
        out: Any = None,
        async_op: bool = False,
        timeout: float | None = None,
        algorithm: str | None = None,
        deterministic: bool = False,
        stream: object = None,
    ) -> Any:
        """Reduce the arrays of all ranks; every rank gets the result.

        Parameters
        ----------
        x : array
            This rank's contribution, of the same shape and dtype on all ranks.
        op : ReduceOp, premul_sum(factor) or callable
            The reduction. A callable is commutative and elementwise, on two arrays; it may see
            slices, in any order, and leaves them as they are.
        out : array, optional
            Takes the result; x itself does if it is None.
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
        array
            `out`, or `x`; or a `Work`.

        Raises
        ------
        UsageError
            If an argument does not fit; before anything is sent.
        CommunicationError
            If the call fails or its deadline passes.
        """
        return self._engine.collective(
            "all_reduce",
            x,
            out,
            async_op,
            timeout,
            algorithm,
            stream,
            op=op,
            deterministic=deterministic,
        )

    def reduce(
        self,
        x: Any,
        root: int = 0,
        op: Op = SUM,
        *,
        out: Any = None,
        async_op: bool = False,
        timeout: float | None = None,
        algorithm: str | None = None,
        deterministic: bool = False,
        stream: object = None,
    ) -> Any:
        """Reduce the arrays of all ranks; the root gets the result.

        Parameters
        ----------
        x : array
            This rank's contribution, of the same shape and dtype on all ranks.
        root : int
            The rank that gets the result.
        op : ReduceOp, premul_sum(factor) or callable
            The reduction. A callable is commutative and elementwise, on two arrays; it may see
            slices, in any order, and leaves them as they are.
        out : array, optional
            At the root, takes the result; x itself does if it is None. Not used elsewhere.
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
        array or None
            At the root `out` or `x`, elsewhere None (x is untouched); or a `Work`.

        Raises
        ------
        UsageError
            If an argument does not fit; before anything is sent.
        CommunicationError
            If the call fails or its deadline passes.
        """
        return self._engine.collective(
            "reduce",
            x,
            out,
            async_op,
            timeout,
            algorithm,
            stream,
            op=op,
            root=root,
            deterministic=deterministic,
        )

    def reduce_scatter(
        self,
        x: Any,
        op: Op = SUM,
        *,
        out: Any = None,
        async_op: bool = False,
        timeout: float | None = None,
        algorithm: str | None = None,
        deterministic: bool = False,
        stream: object = None,
    ) -> Any:
        """Reduce the arrays of all ranks; rank i gets block i of the result.

        Parameters
        ----------
        x : array
            This rank's contribution, of the same shape and dtype on all ranks. Axis 0 is divisible
            by the number of ranks.
        op : ReduceOp, premul_sum(factor) or callable
            The reduction. A callable is commutative and elementwise, on two arrays; it may see
            slices, in any order, and leaves them as they are.
        out : array, shape ``(x.shape[0] // size, *x.shape[1:])``, optional
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
        array, shape ``(x.shape[0] // size, *x.shape[1:])``
            The block; or a `Work`.

        Raises
        ------
        UsageError
            If an argument does not fit; before anything is sent.
        CommunicationError
            If the call fails or its deadline passes.
        """
        return self._engine.collective(
            "reduce_scatter",
            x,
            out,
            async_op,
            timeout,
            algorithm,
            stream,
            op=op,
            deterministic=deterministic,
        )

    def scan(
        self,
        x: Any,
        op: Op = SUM,
        *,
        out: Any = None,
        exclusive: bool = False,
        async_op: bool = False,
        timeout: float | None = None,
        algorithm: str | None = None,
        deterministic: bool = False,
        stream: object = None,
    ) -> Any:
        """Reduce the arrays of the ranks up to this one.

        Parameters
        ----------
        x : array
            This rank's contribution, of the same shape and dtype on all ranks.
        op : ReduceOp, premul_sum(factor) or callable
            The reduction, but AVG. A callable is commutative and elementwise, on two arrays; it may see
            slices, in any order, and leaves them as they are.
        out : array, optional
            Takes the result; None makes a new array. It may be x.
        exclusive : bool
            Leave this rank's own contribution out; rank 0 gets the reduction's identity.
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
        array, of x's shape
            The prefix; or a `Work`.

        Raises
        ------
        UsageError
            If an argument does not fit; before anything is sent.
        CommunicationError
            If the call fails or its deadline passes.
        """
        return self._engine.collective(
            "scan",
            x,
            out,
            async_op,
            timeout,
            algorithm,
            stream,
            op=op,
            exclusive=exclusive,
            deterministic=deterministic,
        )
