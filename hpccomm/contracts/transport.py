"""Point-to-point transfer of bytes, which every backend implements.

The module also has the contracts of memory that ranks of a node share, of messages that plans bind to their arrays,
and of `Arrivals`: messages whose sender, tag or size the receiver does not know. The runner of schedules, messages and
the control plane call transports; ``Communicator.probe`` and receives from any sender call `Arrivals`.
"""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple, Protocol
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from hpccomm.dtypes import REDUCIBLE, DType
from hpccomm.errors import BufferMismatch

CHANNELS = 16
"""Number of channels in tags, including the control plane's."""

CALLS = 8
"""Number of calls after which the number in a tag begins anew."""

DTYPES = 32
"""Number of codes of dtypes: the tag of a user's message modulo this is the code of its dtype."""

_CODES = {dtype: code for code, dtype in enumerate(REDUCIBLE, 1)}  # 0: no dtype
_DTYPES = {code: dtype for dtype, code in _CODES.items()}
_KINDS = {
    "M": "dates (datetime64)",
    "m": "time spans (timedelta64)",
    "U": "text (str_)",
    "S": "bytes (bytes_)",
    "structured": "a structured dtype",
    "other": "a dtype that is not reduced",
}
"""Names of the kinds of all other dtypes. Each kind has several of the remaining codes, so that most of its dtypes get
different codes."""
_EACH = (DTYPES - 1 - len(_CODES)) // len(_KINDS)
_NAMES = [
    "no array",
    *(f"dtype {dtype}" for dtype in _CODES),
    *(name for name in _KINDS.values() for _ in range(_EACH)),
]
_OWN: dict[int, str] = {}
"""Names of the other dtypes that this process has used, by code."""

Array = NDArray[Any]
"""An array in host memory."""

Request = Callable[[], bool]
"""A transfer under way. Calling it moves the transfer on and returns whether it is complete; never blocks.

The request of a receive raises `hpccomm.BufferMismatch` if a message of another size arrived. A request is
not called again after it has returned True or raised.
"""


PACKET_BYTES = 2048
"""Most bytes of a packet: every library sends so few bytes along with the message's envelope."""

Packet = Callable[[], bytes | None]
"""A packet under way. Calling it returns the packet's bytes once they have arrived, else None; never blocks. It is not
called again after it has returned bytes."""


class BoundSet(NamedTuple):
    """Messages that are bound to their arrays, and can be begun repeatedly.

    Attributes
    ----------
    start : callable
        Begins all messages, once those of the previous start are complete. Never blocks.
    test : Request
        Moves the messages on and returns whether all are complete; never blocks. Unlike other requests, it may be
        called again after it has returned True.
    """

    start: Callable[[], object]
    test: Request


Steps = Iterator[bool]
"""A polled operation. Each `next` moves the operation on as far as it can go and returns whether it moved; the
iterator ends when the operation is done."""


class Receiving(Protocol):
    """Begins to receive messages of one sender and tag."""

    def __call__(self, data: Array, beside: Request | None = None, /) -> Steps:
        """Begin to receive exactly ``data.nbytes`` bytes.

        The steps end once `beside`, a send, is complete as well. The error of a message that does not fit is raised
        then.
        """


RECORD = 13
"""Number of integers that a rank publishes in a call on memory that ranks share."""

Record = NDArray[np.int64]
"""The integers that a rank publishes, of shape (RECORD,). The first is the call's fingerprint, which
differs if ranks make different calls; the others tell peers where the rank's buffers lie."""


class Reach(Enum):
    """The memory of each other that the ranks of a node reach in one call."""

    DIRECT = "direct"
    """They reach each other's arrays."""
    STAGED = "staged"
    """They reach only each other's scratch."""
    NONE = "none"
    """They reach nothing."""


class Pages(Protocol):
    """A peer's array that is not mapped here, so that the kernel copies from it and to it.

    Attributes
    ----------
    size : int
        Number of elements.
    """

    size: int

    def part(self, where: slice) -> "Pages":
        """Return the memory of some elements. Local; reads nothing."""

    def __getitem__(self, where: slice) -> Array:
        """Return a copy of those elements, in memory that the next such read overwrites."""

    def read(self, into: Array) -> None:
        """Read all elements into a C-contiguous array of the same size.

        Raises
        ------
        PeerLost
            If the peer's process has ended.
        """

    def write(self, data: Array) -> None:
        """Overwrite all elements with a C-contiguous array of the same size. Errors are those of `read`."""


class Exposure(Protocol):
    """The buffers of one call that a rank lets its peers reach.

    Attributes
    ----------
    record : Record
        The integers that this rank publishes.
    scratch : ndarray of uint8, or None
        Memory that peers reach in every case, of the requested size; None if there was none.
    lasting : bool
        Whether the same records lead to the same memory in a later call.
    registered : sequence of ndarray of uint8, or None
        This rank's arrays, if all are in registered memory, which outlives them. They keep
        no user's array alive, and the same record leads to the same memory in later calls as well.
    """

    scratch: NDArray[np.uint8] | None
    lasting: bool

    @property
    def record(self) -> Record:
        """The record of this rank."""

    @property
    def registered(self) -> Sequence[Array] | None:
        """The arrays of this rank, if all are in registered memory; else None."""

    def take_records(self, records: Mapping[int, Record]) -> Reach:
        """Take the records of all ranks of the node, including this one, and return the memory that all reach.

        Local; all ranks of the node get the same result.
        """

    def peer_buffer(self, peer: int, buffer: int, dtype: DType) -> Array | Pages:
        """Return the peer's buffer number `buffer` in the same call, as elements of `dtype`.

        Call it only after `take_records`, for memory that all reach, and before the ranks meet for the last time.
        """

    def detached(self) -> "Exposure | None":
        """Return a new exposure for all later calls on the same registered memory; None if that is impossible.

        It keeps no array alive, and its `release` does nothing. There is none for a call with scratch, which each
        call takes anew.
        """

    def release(self) -> None:
        """Drop the buffers: no peer reaches them any more.

        It is not called after a failure. The buffers stay alive then, since a late peer may still reach them.
        """


@dataclass(slots=True)
class MemoryUse:
    """The use that a process makes of registered memory, in all its communicators.

    Attributes
    ----------
    registered : bool
        Whether the process has ever asked for registered memory. If not, no array need be checked for it.
    """

    registered: bool = False


class SharedMemory(Protocol):
    """Access of the ranks of a transport to each other's memory, if they share a node.

    Attributes
    ----------
    plain : bool
        Whether ranks of a node reach each other's plain arrays. The ranks agreed on it
        when the first communicator was made.
    how : str
        How plain arrays are reached, or why they are not, in words.
    use : MemoryUse
        The use that this process makes of registered memory.
    """

    plain: bool
    how: str
    use: MemoryUse

    def empty(self, nbytes: int) -> NDArray[np.uint8]:
        """Return registered memory, which peers can map. Local. Dropping the array frees it.

        Raises
        ------
        MemoryError
            If memory is exhausted.
        """

    def share(self, room: int) -> int:
        """Return the bytes of a rank if the ranks of a node share `room` bytes. The same on all ranks."""

    def holds(self, data: Array) -> bool:
        """Return whether an array lies in registered memory of this process."""

    def housekeep(self) -> None:
        """Do the periodic work on this process's registered memory. Local; cheap."""

    def expose(
        self, buffers: Sequence[Array], fingerprint: int, scratch: int, *, plain: bool, room: int
    ) -> Exposure:
        """Let the peers reach this rank's buffers of one call.

        Local, never blocks. All ranks expose in the same order of calls.

        Parameters
        ----------
        buffers : sequence of ndarray, 1-D
            The buffers. Their index is the number by which peers ask for them.
        fingerprint : int
            The fingerprint of the call.
        scratch : int
            Requested bytes of scratch, which peers reach in every case.
        plain : bool
            Whether peers may reach plain arrays, if they can; equal on all ranks.
        room : int
            Most bytes of scratch that this process may have in use for all its calls.
        """


class BoundMessage(NamedTuple):
    """One end of a message that is sent repeatedly.

    Attributes
    ----------
    data : ndarray
        The array whose contents are sent, or that receives. It must be C-contiguous unless `Persistent.strides`.
    peer : int
        The rank at the other end.
    tag : int
        The tag, as in `Transport.isend`. No other message between the two ranks may have it.
    """

    data: Array
    peer: int
    tag: int


class Persistent(Protocol):
    """Messages that a library prepares once, so that sending them again costs less.

    Attributes
    ----------
    strides : bool
        Whether the library packs arrays that are not C-contiguous, in less time than NumPy copies them.
    """

    strides: bool

    def pays(self, peer: int, nbytes: int) -> bool:
        """Return whether binding pays for a message of that size. Local; both ends get the same result."""

    def bind(self, receives: Sequence[BoundMessage], sends: Sequence[BoundMessage]) -> BoundSet:
        """Bind messages to their arrays, which live as long as the result. Local; never blocks.

        The two ends of each message must have agreed on its size, since a receive does not check it.
        """


class Transport(Protocol):
    """Messages between the ranks of one communicator.

    Messages of one sender, receiver and tag arrive in order: receives get them in the order in which the receives
    were begun, whichever is tested first. No call blocks. The memory belongs to the transfer until the transfer
    is complete.

    Attributes
    ----------
    rank, size : int
        This rank in the communicator, and the number of ranks.
    largest_tag : int
        The largest tag; the smallest is 0. A tag of a user's message is the user's tag times ``DTYPES`` plus the code
        of its dtype.
    shared : SharedMemory or None
        The access to peers' memory, if ranks share memory.
    persistent : Persistent or None
        Binds messages to their arrays; None if that is impossible or useless.
    """

    rank: int
    size: int
    largest_tag: int
    shared: SharedMemory | None
    persistent: Persistent | None

    def isend(self, data: Array, dst: int, tag: int) -> Request:
        """Begin to send a C-contiguous array to rank `dst`."""

    def irecv(self, data: Array, src: int, tag: int) -> Request:
        """Begin to receive exactly ``data.nbytes`` bytes from rank `src`."""

    def isend_packet(self, data: bytes, dst: int, tag: int) -> Request:
        """Begin to send a packet of at most ``PACKET_BYTES`` bytes. The receiver need not know its size.

        Packets match only packets, in their order: no other message between the two ranks may have their tag.
        """

    def irecv_packet(self, src: int, tag: int) -> Packet:
        """Begin to receive a packet from rank `src`."""

    def receiving(self, src: int, tag: int) -> Receiving:
        """Return a function that begins a receive as steps, perhaps with a send beside it; see `Receiving`."""

    def isend_again(self, data: Array, dst: int, tag: int) -> BoundSet:
        """Return a bound message that, at each start, sends this array to rank `dst` as `isend` does."""

    def irecv_again(self, data: Array, src: int, tag: int) -> BoundSet:
        """Return a bound message that, at each start, receives from rank `src` as `irecv` does."""

    def look(self, src: int, tag: int, nbytes: int, *, take: bool = False) -> bool:
        """Return whether a receive of `nbytes` bytes that has waited long seems to wait in vain. Never blocks.

        It is called now and then for the first incomplete receive of `src` and `tag`. The result may be wrong once,
        if the awaited message has arrived in the meantime.

        Parameters
        ----------
        src, tag : int
            The source and the tag of the receive.
        nbytes : int
            Bytes that the receive waits for.
        take : bool
            Whether to receive the message that arrived instead, so that its sender can go on, and raise.

        Raises
        ------
        BufferMismatch
            With `take`, if another message arrived.
        """


def begun_anew(begin: Callable[[], Request]) -> BoundSet:
    """Return a bound message that begins a new transfer at each start, for transports without persistent ones."""
    test: Request | None = None

    def start() -> None:
        nonlocal test
        test = begin()

    def tested() -> bool:
        nonlocal test
        if test is not None and test():
            test = None
        return test is None

    return BoundSet(start, tested)


def dtype_code(dtype: DType) -> int:
    """Return the code of a dtype, below ``DTYPES``. It is the same on all ranks."""
    known = _CODES.get(dtype)
    if known is not None:
        return known
    kinds = list(_KINDS)
    kind = dtype.kind if dtype.kind in kinds else "other" if dtype.names is None else "structured"
    which = kinds.index(kind) * _EACH + crc32(repr(dtype).encode()) % _EACH
    code, name = 1 + len(_CODES) + which, f"dtype {dtype}"
    if _OWN.setdefault(code, name) != name:  # several dtypes have this code
        _OWN[code] = _KINDS[kind]
    return code


def dtype_of(tag: int) -> DType | None:
    """Return the dtype whose code is in the tag of a user's message; None if the code stands for a kind of dtypes."""
    return _DTYPES.get(tag % DTYPES)


def other_dtype(src: int, came: int, tag: int) -> BufferMismatch:
    """Return the error of a message of another dtype, which arrived with the tag `came` and not with `tag`."""
    sent, code = _NAMES[came % DTYPES], tag % DTYPES
    taken = _OWN.get(code, _NAMES[code])
    error = BufferMismatch(
        f"rank {src} sent {sent}, and the array has {taken}; give an array of the dtype that is sent"
    )
    error.ranks = (src,)
    return error


def check_fit(src: int, came: int, tag: int, arrived: int, expected: int) -> None:
    """Raise unless a message has the tag and the size of the receive that took it."""
    if came != tag:
        raise other_dtype(src, came, tag)
    if arrived != expected:
        raise mismatch(src, arrived, expected)


def mismatch(src: int, arrived: int, expected: int) -> BufferMismatch:
    """Return the error of a message of another size, or of another call."""
    if arrived == expected:
        error = BufferMismatch(
            f"rank {src} sent {arrived} bytes of another call; "
            "make the same calls in the same order on all ranks"
        )
    else:
        error = BufferMismatch(
            f"rank {src} sent {arrived} bytes, and the array takes {expected} bytes; "
            "give an array of the size that is sent"
        )
    error.ranks = (src,)
    return error


class Anything(Enum):
    """Stands for any rank or any tag."""

    ANY = "any"

    __hash__ = object.__hash__  # quick, since it is a part of the keys of prepared calls

    def __repr__(self) -> str:
        return "hpccomm.ANY"


ANY = Anything.ANY
"""Any rank as sender, or any tag."""


class Wanted(NamedTuple):
    """The messages that are wanted.

    Attributes
    ----------
    src : int or None
        The sender; None is any.
    fits : callable
        ``fits(tag)`` returns whether a message with that transport's tag is wanted.
    tags : sequence of int
        The transport's tags that fit, if they are few; else empty.
    exact : int or None
        The tag that is looked for first: the tag of messages that fit the receiver's array.
    """

    src: int | None
    fits: Callable[[int], bool]
    tags: Sequence[int]
    exact: int | None = None

    def meets(self, other: "Wanted", samples: Sequence[int]) -> bool:
        """Return whether the same message may be wanted by both. `samples` are tags that stand for all tags."""
        if None not in (self.src, other.src) and self.src != other.src:
            return False
        return any(self.fits(tag) and other.fits(tag) for tag in self.tags or other.tags or samples)


class Arrival(NamedTuple):
    """A message that has been matched, so that no other receive gets it.

    Attributes
    ----------
    src : int
        The sender.
    tag : int
        The transport's tag.
    nbytes : int
        Bytes of the message.
    receive : callable
        ``receive(data)`` returns the steps that receive the message into a C-contiguous array of the same
        size; if `data` is None, they drop it. It must be called once. Until then a large message keeps its
        sender waiting.
    """

    src: int
    tag: int
    nbytes: int
    receive: Callable[[NDArray[Any] | None], Steps]


class Arrivals(Protocol):
    """Looks for messages to this rank on the transport of users' messages.

    It is the attribute ``arrivals`` of a backend. A backend without it does not support receives from any
    sender.
    """

    def take(self, wanted: Wanted) -> Generator[bool, None, Arrival | None]:
        """Match a wanted message that has arrived, as polled steps, and return it; return None at once without one.

        A message for an earlier receive belongs to that receive. Of messages with the same sender and
        tag, the first is taken. If `wanted` has no list of tags, a message behind an unwanted
        message of the same sender may have to wait until that is received.
        """
