"""The collectives on blocks of one size that reduce nothing."""

from typing import Any

from hpccomm.communicator.face import Face


class Collectives(Face):
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
        return self._engine.collective(
            "broadcast", x, None, async_op, timeout, algorithm, stream, root=root
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
        return self._engine.collective("all_gather", x, out, async_op, timeout, algorithm, stream)

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
        return self._engine.collective("all_to_all", x, out, async_op, timeout, algorithm, stream)

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
        return self._engine.collective(
            "gather", x, out, async_op, timeout, algorithm, stream, root=root
        )

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
        return self._engine.collective(
            "scatter", x, out, async_op, timeout, algorithm, stream, root=root
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
        return self._engine.collective("barrier", None, None, async_op, timeout, algorithm, stream)

    def neighbor_all_to_all(
        self,
        x: Any,
        peers: Any,
        send_counts: Any = None,
        recv_counts: Any = None,
        *,
        out: Any = None,
        async_op: bool = False,
        timeout: float | None = None,
        algorithm: str | None = None,
        stream: object = None,
    ) -> Any:
        """Send block j of x to rank ``peers[j]``, and receive block j of the result from it.

        Every rank of the communicator calls it, also one that has no peers. Lists are symmetric: a rank
        lists another one as often as that lists it. The k-th time that a rank lists a peer belongs to
        the k-th time that the peer lists the rank. A rank may list itself.

        On a periodic grid that is two ranks wide, the ranks on both sides of a rank are one. If all list
        the left one first, then what comes as the block of the left one is what that rank sent to its
        own left, and belongs to the right border. Let the two ranks list them in opposite order, or
        swap the two blocks afterwards. On a grid one rank wide, swap them.

        Parameters
        ----------
        x : array
            A block for each peer, one after the other along axis 0. Of the same dtype on all ranks.
        peers : sequence of int or None
            The rank of each block. None stands for nobody, as at the border of a domain: that block of x
            is not sent, and that block of the result is left as it was in `out`; a new array has zeros
            there.
        send_counts : sequence of int, optional
            Rows of each block of x. None is blocks of one size, on all ranks: axis 0 is divisible by the
            number of peers. Given on all ranks or on none.
        recv_counts : sequence of int, optional
            Rows of each block of the result. None exchanges them first, if `send_counts` is given; a block
            of nobody has no rows then. Given on all ranks or on none.
        out : array, optional
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
        array
            The blocks from the peers, in the order of `peers`; or a `Work`.

        Raises
        ------
        UsageError
            If an argument does not fit; before anything is sent.
        CommunicationError
            If the call fails or its deadline passes, as it does if lists are not symmetric. `plan` finds
            that before, and raises `RankMismatch` on every rank.
        """
        lists = self._engine.counts.peer_lists(
            "neighbor_all_to_all",
            x,
            out,
            peers,
            send_counts,
            recv_counts,
            timeout,
            algorithm,
            stream,
        )
        return self._engine.collective(
            "neighbor_all_to_all", x, out, async_op, timeout, algorithm, stream, lists=lists
        )
