"""Point to point."""

from typing import Any

from hpccomm.communicator.core import Core
from hpccomm.communicator.device_call import check_own
from hpccomm.communicator.devices import Devices
from hpccomm.contracts.device import Piece, Span
from hpccomm.contracts.transport import Steps
from hpccomm.errors import UsageError
from hpccomm.memory.cuda.arrays import DeviceArray
from hpccomm.memory.views import View, address, check_dtype, check_layout, flat, overlap, view
from hpccomm.runtime.engine import Operation
from hpccomm.runtime.waiting import completed
from hpccomm.settings import check_bool, check_int
from hpccomm.topology import check_rank

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
            For device arrays: a CuPy stream, its number, or an object with ``__cuda_stream__``. None is
            the current one of the array's framework.

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
        with self._one_call():
            array = self._readable(x, "x", stream)
            to = None if dst is None else check_rank("dst", dst, self._backend.size)
            if isinstance(array, DeviceArray):
                return self._on_device(
                    "send", None, array, to, None, None, tag, (x,), stream, async_op, timeout
                )
            wire = wire_tag(self._checked_tag(tag), ARRAYS)
            operation = Operation("send", 0, _nothing, (), ordered=False)
            if to is not None:
                peer, data = to, flat(array)

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
            For device arrays: a CuPy stream, its number, or an object with ``__cuda_stream__``. None is
            the current one of the array's framework.

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
        with self._one_call():
            array = self._writable(out, "out", stream)
            origin = None if src is None else check_rank("src", src, self._backend.size)
            if isinstance(array, DeviceArray):
                return self._on_device(
                    "recv", out, None, None, array, origin, tag, (out,), stream, async_op, timeout
                )
            wire = wire_tag(self._checked_tag(tag), ARRAYS)
            operation = Operation("recv", 0, _nothing, (), ordered=False)
            if origin is not None:
                peer, data = origin, flat(array)

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
            For device arrays: a CuPy stream, its number, or an object with ``__cuda_stream__``. None is
            the current one of the array's framework.

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
        with self._one_call():
            source, target = self._readable(x, "x", stream), self._writable(out, "out", stream)
            to = None if dst is None else check_rank("dst", dst, self._backend.size)
            origin = None if src is None else check_rank("src", src, self._backend.size)
            if isinstance(source, DeviceArray) or isinstance(target, DeviceArray):
                self._check_devices(source, target)
            replaced = overlap(source, target)
            if replaced and not (
                source.nbytes == target.nbytes and address(source) == address(target)
            ):
                raise UsageError(
                    "x and out of send_recv overlap; give out=x, or arrays that share no memory"
                )
            if isinstance(source, DeviceArray):
                assert isinstance(target, DeviceArray)
                keep = (out, x)
                return self._on_device(
                    "send_recv",
                    out,
                    source,
                    to,
                    target,
                    origin,
                    tag,
                    keep,
                    stream,
                    async_op,
                    timeout,
                )
            assert not isinstance(target, DeviceArray)
            wire = wire_tag(self._checked_tag(tag), ARRAYS)
            transport = self._backend.messages
            outgoing_view, incoming = source, target

            def start() -> Steps:
                outgoing = flat(outgoing_view).copy() if replaced else flat(outgoing_view)
                requests = []
                if origin is not None:
                    requests.append(transport.irecv(flat(incoming), origin, wire))
                if to is not None:
                    requests.append(transport.isend(outgoing, to, wire))
                return completed(requests)

            nbytes = max(source.nbytes, target.nbytes)
            operation = Operation("send_recv", nbytes, start, (x, out), ordered=False)
            return self._polled(operation, out, async_op, timeout)

    def _on_device(
        self,
        name: str,
        result: Any,
        source: DeviceArray | None,
        to: int | None,
        target: DeviceArray | None,
        origin: int | None,
        tag: int,
        keep: tuple[Any, ...],
        stream: object,
        async_op: bool,
        timeout: float | None,
    ) -> Any:
        """Issue a call on arrays in device memory."""
        self._check_devices(source, target)
        devices = self._devices
        assert isinstance(devices, Devices)
        limit = self._timeout(timeout)
        check_bool("async_op", async_op)
        sends = () if source is None or to is None else (Piece(to, _span(source)),)
        receives = () if target is None or origin is None else (Piece(origin, _span(target)),)
        way = devices.path.message(receives, sends, self._checked_tag(tag))
        nbytes = max((piece.data.nbytes for piece in (*sends, *receives)), default=0)
        call = devices.message(
            way,
            (name, nbytes),
            result,
            keep,
            stream,
            () if source is None or to is None else (source,),
            () if target is None or origin is None else (target,),
            self._own(sends),
            self._own(receives),
        )
        if way.launch is not None and self._batch is None:
            check_own((call,))
        if self._batch is not None:
            self._collect(call, async_op)
            return result
        return devices.issue(call, async_op, limit)

    def _own(self, pieces: tuple[Piece, ...]) -> tuple[int, ...]:
        """Return the bytes of those that stay on this rank, of the empty ones aside."""
        rank = self._backend.rank
        return tuple(p.data.nbytes for p in pieces if p.peer == rank and p.data.nbytes)

    def _readable(self, x: Any, name: str, stream: object) -> View:
        array = view(x, name)
        check_dtype(name, array.dtype)
        check_layout(array, name, written=False)
        if stream is not None and not isinstance(array, DeviceArray):
            self._refuse_stream(stream)
        return array

    def _writable(self, x: Any, name: str, stream: object) -> View:
        array = self._readable(x, name, stream)
        check_layout(array, name, written=True)
        return array

    def _checked_tag(self, tag: object) -> int:
        largest = self._backend.messages.largest_tag // 2 - 1
        number = check_int("tag", tag)
        if not 0 <= number <= largest:
            raise UsageError(f"tag is {tag!r}; give an integer from 0 to {largest}")
        return number


def _span(array: DeviceArray) -> Span:
    return Span(array.pointer, array.elements, array.dtype)


def _nothing() -> Steps:
    return iter(())
