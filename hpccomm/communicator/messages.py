"""Point to point."""

from typing import Any

from hpccomm.communicator.face import Face


class Messages(Face):
    """Between two ranks. Messages with the same sender, receiver and tag arrive in order."""

    def send(
        self,
        x: Any,
        dst: int | None,
        tag: int = 0,
        *,
        async_op: bool = False,
        timeout: float | None = None,
        stream: object = None,
    ) -> Any:
        """Send x to rank `dst`. Returns when x may be used again; this may need the receiver.

        Parameters
        ----------
        x : array
            Of any shape and dtype.
        dst : int or None
            The receiver; None does nothing.
        tag : int
            Distinguishes messages.
        async_op : bool
            Return a `Work` at once.
        timeout : float, optional
            Deadline in seconds. None is the communicator's deadline, ``math.inf`` is no deadline.
        stream : object, optional
            For device arrays: a CuPy stream, its number, or an object with ``__cuda_stream__``. None is
            the current one of the array's framework.

        Returns
        -------
        None
            Or a `Work`.

        Raises
        ------
        UsageError
            If an argument does not fit. Nothing has been sent then.
        CommunicationError
            If the call fails or its deadline passes.
        """
        return self._engine.messages.exchange(
            "send", x, dst, None, None, tag, async_op, timeout, stream
        )

    def recv(
        self,
        out: Any,
        src: int | None,
        tag: int = 0,
        *,
        async_op: bool = False,
        timeout: float | None = None,
        stream: object = None,
    ) -> Any:
        """Receive an array from rank `src` into `out`.

        Parameters
        ----------
        out : array
            It must have exactly as many bytes as are sent.
        src : int or None
            The sender; None does nothing.
        tag : int
            The message's.
        async_op : bool
            Return a `Work` at once.
        timeout : float, optional
            Deadline in seconds. None is the communicator's deadline, ``math.inf`` is no deadline.
        stream : object, optional
            For device arrays: a CuPy stream, its number, or an object with ``__cuda_stream__``. None is
            the current one of the array's framework.

        Returns
        -------
        array
            `out`; or a `Work`.

        Raises
        ------
        UsageError
            If an argument does not fit. Nothing has been received then.
        BufferMismatch
            If the message has another size. The message is lost; the communicator can still be used.
        CommunicationError
            If the call fails or its deadline passes.
        """
        return self._engine.messages.exchange(
            "recv", None, None, out, src, tag, async_op, timeout, stream
        )

    def send_recv(
        self,
        x: Any,
        dst: int | None,
        out: Any,
        src: int | None,
        tag: int = 0,
        *,
        async_op: bool = False,
        timeout: float | None = None,
        stream: object = None,
    ) -> Any:
        """Send x to rank `dst` while receiving `out` from rank `src`.

        Parameters
        ----------
        x : array
            What is sent.
        dst : int or None
            The receiver; None sends nothing.
        out : array
            It must have exactly as many bytes as are received. It may be x.
        src : int or None
            The sender; None receives nothing.
        tag : int
            Of both messages.
        async_op : bool
            Return a `Work` at once.
        timeout : float, optional
            Deadline in seconds. None is the communicator's deadline, ``math.inf`` is no deadline.
        stream : object, optional
            For device arrays: a CuPy stream, its number, or an object with ``__cuda_stream__``. None is
            the current one of the array's framework.

        Returns
        -------
        array
            `out`; or a `Work`.

        Raises
        ------
        UsageError
            If an argument does not fit. Nothing has been sent then.
        BufferMismatch
            If the message has another size. The message is lost; the communicator can still be used.
        CommunicationError
            If the call fails or its deadline passes.
        """
        return self._engine.messages.exchange(
            "send_recv", x, dst, out, src, tag, async_op, timeout, stream
        )
