"""The collectives on blocks of one size."""

from typing import Any

from hpccomm.communicator.core import Core
from hpccomm.reductions import Op, ReduceOp

SUM = ReduceOp.SUM


class Collectives(Core):
    """Every call is collective: all ranks of the communicator call it, in the same order.

    `x` and `out` are arrays, both of the host (NumPy, or anything with the buffer protocol or DLPack)
    or both of this rank's device (CuPy, PyTorch, or anything with ``__cuda_array_interface__`` or CUDA
    DLPack), and so on all ranks: C-contiguous, in native byte order, writable where written. `out` may
    have any shape with the right number of elements. Keywords are equal on all ranks, but for `timeout`
    and `stream`.

    On host arrays a synchronous call blocks until the result is there. On device arrays it is put on a
    stream: it begins once what is there is done, and what follows on that stream finds the result; the
    host goes on, unless it takes part (``comm.backends["cuda"]`` is not ``"nccl"``). Its deadline counts
    from the call, with the work that the stream has before it; once it passes, the communicator is
    aborted and later calls raise.
    """

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
        return self._collective(
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

    def broadcast(
        self,
        x: Any,
        root: int = 0,
        *,
        async_op: bool = False,
        timeout: float | None = None,
        algorithm: str | None = None,
        stream: object = None,
    ) -> Any:
        """Overwrite x on every rank with the root's.

        Parameters
        ----------
        x : array
            Of the same shape and dtype on all ranks.
        root : int
            The rank that has the data.
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
        array
            `x`; or a `Work`.

        Raises
        ------
        UsageError
            If an argument does not fit; before anything is sent.
        CommunicationError
            If the call fails or its deadline passes.
        """
        return self._collective(
            "broadcast", x, None, async_op, timeout, algorithm, stream, root=root
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
        return self._collective(
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

    def all_gather(
        self,
        x: Any,
        *,
        out: Any = None,
        async_op: bool = False,
        timeout: float | None = None,
        algorithm: str | None = None,
        stream: object = None,
    ) -> Any:
        """Collect every rank's array on every rank.

        Parameters
        ----------
        x : array, shape s
            Of the same shape and dtype on all ranks. It may be `out`'s block of this rank.
        out : array, shape ``(size, *s)``, optional
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
        array, shape ``(size, *s)``
            The arrays, by rank; or a `Work`.

        Raises
        ------
        UsageError
            If an argument does not fit; before anything is sent.
        CommunicationError
            If the call fails or its deadline passes.
        """
        return self._collective("all_gather", x, out, async_op, timeout, algorithm, stream)

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
        return self._collective(
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

    def all_to_all(
        self,
        x: Any,
        *,
        out: Any = None,
        async_op: bool = False,
        timeout: float | None = None,
        algorithm: str | None = None,
        stream: object = None,
    ) -> Any:
        """Send block j to rank j, and receive a block from each rank.

        Parameters
        ----------
        x : array
            Of the same shape and dtype on all ranks. Axis 0 is divisible by the number of ranks.
        out : array, optional
            Takes the result; None makes a new array. It may be x.
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
        array, of x's shape
            Block j is from rank j; or a `Work`.

        Raises
        ------
        UsageError
            If an argument does not fit; before anything is sent.
        CommunicationError
            If the call fails or its deadline passes.
        """
        return self._collective("all_to_all", x, out, async_op, timeout, algorithm, stream)

    def gather(
        self,
        x: Any,
        root: int = 0,
        *,
        out: Any = None,
        async_op: bool = False,
        timeout: float | None = None,
        algorithm: str | None = None,
        stream: object = None,
    ) -> Any:
        """Collect every rank's array at the root.

        Parameters
        ----------
        x : array, shape s
            Of the same shape and dtype on all ranks. At the root it may be `out`'s own block.
        root : int
            The rank that gets the result.
        out : array, shape ``(size, *s)``, optional
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
        array, shape ``(size, *s)``, or None
            At the root the arrays, by rank, elsewhere None; or a `Work`.

        Raises
        ------
        UsageError
            If an argument does not fit; before anything is sent.
        CommunicationError
            If the call fails or its deadline passes.
        """
        return self._collective("gather", x, out, async_op, timeout, algorithm, stream, root=root)

    def scatter(
        self,
        x: Any,
        root: int = 0,
        *,
        out: Any = None,
        async_op: bool = False,
        timeout: float | None = None,
        algorithm: str | None = None,
        stream: object = None,
    ) -> Any:
        """Hand each rank its block of the root's array.

        Parameters
        ----------
        x : array or None
            At the root, with axis 0 divisible by the number of ranks. Not used elsewhere.
        root : int
            The rank that has the data.
        out : array, optional
            Takes this rank's block. Required but at the root, where None makes a new array and it
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
        array
            This rank's block, of shape ``(x.shape[0] // size, *x.shape[1:])``; or a `Work`.

        Raises
        ------
        UsageError
            If an argument does not fit; before anything is sent.
        CommunicationError
            If the call fails or its deadline passes.
        """
        return self._collective("scatter", x, out, async_op, timeout, algorithm, stream, root=root)

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
        return self._collective(
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

    def barrier(
        self,
        *,
        async_op: bool = False,
        timeout: float | None = None,
        algorithm: str | None = None,
        stream: object = None,
    ) -> Any:
        """Wait until every rank has called. It blocks the host.

        What is on a device's streams it neither waits for nor holds up: synchronize the stream before.

        Parameters
        ----------
        async_op : bool
            Return a `Work` at once instead. Equal on all ranks.
        timeout : float, optional
            Seconds; None is the communicator's, ``math.inf`` none.
        algorithm : str, optional
            None, ``"auto"``, or an algorithm name; an unknown one raises an error that lists the valid ones.
        stream : None
            A barrier has no arrays, and so no stream.

        Returns
        -------
        None
            Or a `Work`.

        Raises
        ------
        UsageError
            If an argument does not fit; before anything is sent.
        CommunicationError
            If the call fails or its deadline passes.
        """
        return self._collective("barrier", None, None, async_op, timeout, algorithm, stream)
