"""Point to point."""

from typing import Any

from hpccomm.buffers import address, check_dtype, check_layout, flat, overlap, view
from hpccomm.calls import Operation
from hpccomm.communicator.core import Core
from hpccomm.errors import UsageError
from hpccomm.execution import completed
from hpccomm.settings import check_int
from hpccomm.topology import check_rank
from hpccomm.waiting import Steps

# Arrays and objects share the transport; one bit of the tag keeps them apart.
ARRAYS, OBJECTS = 0, 1


def wire_tag(tag: int, kind: int) -> int:
    """Return the transport's tag for the user's `tag` and a kind of message."""
    return 2 * tag + kind


class Messages(Core):
    """Between two ranks. Messages of one sender, receiver and tag arrive in their order."""

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
        """Send x to rank `dst`. Returns when x may be used again, which may need the receiver.

        Parameters
        ----------
        x : array
            Of any shape and dtype.
        dst : int or None
            The receiver; None does nothing.
        tag : int
            Tells messages apart.
        async_op : bool
            Return a `Work` at once instead.
        timeout : float, optional
            Seconds; None is the communicator's, ``math.inf`` none.
        stream : object, optional
            For device arrays.

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
        with self._one_call(stream):
            operation = Operation("send", 0, _nothing, (), ordered=False)
            array = self._readable(x, "x")
            wire = wire_tag(self._checked_tag(tag), ARRAYS)
            if dst is not None:
                peer = check_rank("dst", dst, self._backend.size)
                data = flat(array)

                def start() -> Steps:
                    return completed([self._backend.messages.isend(data, peer, wire)])

                operation = Operation("send", data.nbytes, start, (x,), ordered=False)
            return self._polled(operation, None, async_op, timeout)

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
            Exactly as many bytes as are sent.
        src : int or None
            The sender; None does nothing.
        tag : int
            The message's.
        async_op : bool
            Return a `Work` at once instead.
        timeout : float, optional
            Seconds; None is the communicator's, ``math.inf`` none.
        stream : object, optional
            For device arrays.

        Returns
        -------
        array
            `out`; or a `Work`.

        Raises
        ------
        UsageError
            If an argument does not fit; before anything is received.
        BufferMismatch
            If the message has another size. It is lost; the communicator goes on.
        CommunicationError
            If the call fails or its deadline passes.
        """
        with self._one_call(stream):
            operation = Operation("recv", 0, _nothing, (), ordered=False)
            array = self._writable(out, "out")
            wire = wire_tag(self._checked_tag(tag), ARRAYS)
            if src is not None:
                peer = check_rank("src", src, self._backend.size)
                data = flat(array)

                def start() -> Steps:
                    return completed([self._backend.messages.irecv(data, peer, wire)])

                operation = Operation("recv", data.nbytes, start, (out,), ordered=False)
            return self._polled(operation, out, async_op, timeout)

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
            Exactly as many bytes as are received. It may be x.
        src : int or None
            The sender; None receives nothing.
        tag : int
            Of both messages.
        async_op : bool
            Return a `Work` at once instead.
        timeout : float, optional
            Seconds; None is the communicator's, ``math.inf`` none.
        stream : object, optional
            For device arrays.

        Returns
        -------
        array
            `out`; or a `Work`.

        Raises
        ------
        UsageError
            If an argument does not fit; before anything is sent.
        BufferMismatch
            If the message has another size. It is lost; the communicator goes on.
        CommunicationError
            If the call fails or its deadline passes.
        """
        with self._one_call(stream):
            wire = wire_tag(self._checked_tag(tag), ARRAYS)
            source, target = self._readable(x, "x"), self._writable(out, "out")
            to = None if dst is None else check_rank("dst", dst, self._backend.size)
            origin = None if src is None else check_rank("src", src, self._backend.size)
            replaced = overlap(source, target)
            if replaced and not (
                source.nbytes == target.nbytes and address(source) == address(target)
            ):
                raise UsageError(
                    "x and out of send_recv overlap; give out=x, or arrays that share no memory"
                )
            transport = self._backend.messages

            def start() -> Steps:
                outgoing = flat(source).copy() if replaced else flat(source)
                requests = []
                if origin is not None:
                    requests.append(transport.irecv(flat(target), origin, wire))
                if to is not None:
                    requests.append(transport.isend(outgoing, to, wire))
                return completed(requests)

            nbytes = max(source.nbytes, target.nbytes)
            operation = Operation("send_recv", nbytes, start, (x, out), ordered=False)
            return self._polled(operation, out, async_op, timeout)

    def _readable(self, x: Any, name: str) -> Any:
        array = view(x, name)
        check_dtype(name, array.dtype)
        check_layout(array, name, written=False)
        return array

    def _writable(self, x: Any, name: str) -> Any:
        array = self._readable(x, name)
        check_layout(array, name, written=True)
        return array

    def _checked_tag(self, tag: object) -> int:
        largest = self._backend.messages.largest_tag // 2 - 1
        number = check_int("tag", tag)
        if not 0 <= number <= largest:
            raise UsageError(f"tag is {tag!r}; give an integer from 0 to {largest}")
        return number


def _nothing() -> Steps:
    return iter(())
