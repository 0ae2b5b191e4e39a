"""Point-to-point transfer of bytes, as every backend gives it.

Also the memory that ranks of a node share, messages bound for plans, and `Arrivals`: messages whose sender, tag or
size the receiver does not know before. The runner of schedules, messages and the control plane call them;
``Communicator.probe`` and receives from any sender call the last.
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
"""Number of dtypes in the tag of a user's message: the base of its last digit."""

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
"""Other dtypes by their kind. Each kind has some of the codes that are left: most of its dtypes differ."""
_EACH = (DTYPES - 1 - len(_CODES)) // len(_KINDS)
_NAMES = [
    "no array",
    *(f"dtype {dtype}" for dtype in _CODES),
    *(name for name in _KINDS.values() for _ in range(_EACH)),
]
_OWN: dict[int, str] = {}
"""Of its own dtypes a process knows more than the kind."""

Array = NDArray[Any]
"""An array in host memory."""

Request = Callable[[], bool]
"""A transfer under way: tells whether it is complete; moves it on, never blocks.

The request of a receive raises `hpccomm.BufferMismatch` if a message of another size came. A request is
not called again after it has returned True or raised.
"""


PACKET_BYTES = 2048
"""The most bytes of a packet: every library sends so little along with the message's envelope."""

Packet = Callable[[], bytes | None]
"""A packet under way: its bytes once it is there, else None; never blocks. It is not called again after that."""


class BoundSet(NamedTuple):
    """Messages that are bound to their arrays, and begun again and again.

    Attributes
    ----------
    start : callable
        Begins all of them, once those before are complete. Never blocks.
    test : Request
        Tells whether all of them are complete; moves them on, never blocks. It may be asked again after that.
    """

    start: Callable[[], object]
    test: Request


Steps = Iterator[bool]
"""A polled operation. Each `next` moves it on as far as it can go and tells whether it moved; the
iterator ends when the operation is done."""


class Receiving(Protocol):
    """Begins to receive messages of one sender and tag."""

    def __call__(self, data: Array, beside: Request | None = None, /) -> Steps:
        """Begin to receive exactly ``data.nbytes`` bytes.

        The steps end once `beside`, a send, is complete as well. What did not fit is raised then.
        """


RECORD = 13
"""Integers that a rank publishes in a call on memory that ranks share."""

Record = NDArray[np.int64]
"""What a rank publishes: an array of `RECORD` integers. The first is the call's fingerprint, which
differs where ranks make different calls; the rest say where its buffers lie, for its peers' eyes."""


class Reach(Enum):
    """The memory that the ranks of a node reach of each other in one call."""

    DIRECT = "direct"
    """Each other's arrays."""
    STAGED = "staged"
    """Each other's scratch alone."""
    NONE = "none"
    """Nothing."""


class Pages(Protocol):
    """A peer's array that is not mapped here: the kernel copies from it and to it.

    Attributes
    ----------
    size : int
        Elements.
    """

    size: int

    def part(self, where: slice) -> "Pages":
        """Return the memory of some of its elements. Local; touches nothing."""

    def __getitem__(self, where: slice) -> Array:
        """Read those elements, into memory that the next such read overwrites."""

    def read(self, into: Array) -> None:
        """Read all its elements into a C-contiguous array of the same size.

        Raises
        ------
        PeerLost
            If the peer's process has ended.
        """

    def write(self, data: Array) -> None:
        """Write a C-contiguous array of the same size over it. Errors are as of `read`."""


class Exposure(Protocol):
    """The buffers of one call that a rank lets its peers reach.

    Attributes
    ----------
    record : Record
        What this rank publishes.
    scratch : ndarray of uint8, or None
        Memory that peers reach in every case, as much as was asked for; None where there was none.
    lasting : bool
        Whether the same records lead to the same memory in a later call.
    registered : sequence of ndarray of uint8, or None
        This rank's arrays, where all are in registered memory that lasts longer than they do. These keep
        no array alive, and are the memory of the same record in later calls as well.
    """

    scratch: NDArray[np.uint8] | None
    lasting: bool

    @property
    def record(self) -> Record:
        """The record of this rank."""

    @property
    def registered(self) -> Sequence[Array] | None:
        """The arrays of this rank, where all are in registered memory."""

    def take_records(self, records: Mapping[int, Record]) -> Reach:
        """Take what each rank of the node published, this one too, and return what all reach.

        The same on all of them. Local.
        """

    def peer_buffer(self, peer: int, buffer: int, dtype: DType) -> Array | Pages:
        """Return the peer's buffer of that number in the same call, as elements of `dtype`.

        Only after `take_records`, of what it said, and until the ranks meet for the last time.
        """

    def detached(self) -> "Exposure | None":
        """Return a new exposure for all calls on the same registered memory; None without one.

        It keeps no array alive, and `release` does nothing to it. Not with scratch, which each
        call takes anew.
        """

    def release(self) -> None:
        """Forget the buffers: no peer reaches them any more.

        After a failure it is not called, and they live on: a late peer may still reach them.
        """


@dataclass(slots=True)
class MemoryUse:
    """The use that a process makes of registered memory, in all its communicators.

    Attributes
    ----------
    registered : bool
        Whether it has ever asked for some. As long as it has not, no array needs a look.
    """

    registered: bool = False


class SharedMemory(Protocol):
    """Memory that the ranks of a transport reach of each other, where they share a node.

    Attributes
    ----------
    plain : bool
        Whether ranks of a node reach each other's plain arrays. The same on all ranks, as agreed
        when the first communicator was made.
    how : str
        In words, how plain arrays are reached, or why they are not.
    use : MemoryUse
        Of this process.
    """

    plain: bool
    how: str
    use: MemoryUse

    def empty(self, nbytes: int) -> NDArray[np.uint8]:
        """Return registered memory, which peers map. Local. It is given back with the array.

        Raises
        ------
        MemoryError
            If memory is exhausted.
        """

    def share(self, room: int) -> int:
        """Return a rank's part of the `room` bytes of a node. Equal on all ranks."""

    def holds(self, data: Array) -> bool:
        """Tell whether an array lies in registered memory of this process."""

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
            By number.
        fingerprint : int
            Of the call.
        scratch : int
            Bytes of memory wanted that peers reach in every case.
        plain : bool
            Whether plain arrays may be reached, where they can be; equal on all ranks.
        room : int
            Bytes of such memory that this process may have in use for all its calls.
        """


class BoundMessage(NamedTuple):
    """One end of a message that is sent again and again.

    Attributes
    ----------
    data : ndarray
        Its contents are sent, or it receives. For `Persistent.strides` alone it need not be C-contiguous.
    peer : int
        The rank at the other end.
    tag : int
        As of `Transport.isend`. No other message between the two ranks may have it.
    """

    data: Array
    peer: int
    tag: int


class Persistent(Protocol):
    """Messages that a library prepares once, so that sending them again costs less.

    Attributes
    ----------
    strides : bool
        Whether it packs arrays that are not C-contiguous, and takes less time for that than NumPy's copies.
    """

    strides: bool

    def pays(self, peer: int, nbytes: int) -> bool:
        """Return whether a message of a size is to be bound. Local; equal at both ends."""

    def bind(self, receives: Sequence[BoundMessage], sends: Sequence[BoundMessage]) -> BoundSet:
        """Bind messages to their arrays, which live as long as the result. Local; never blocks.

        The two ends of each have agreed on its size: a receive does not look at what comes.
        """


class Transport(Protocol):
    """Messages between the ranks of one communicator.

    Messages of one sender, receiver and tag arrive in order: they go to receives in the order in which these
    are begun, whichever is tested first. Neither call blocks; the memory belongs to the transfer until it
    is complete.

    Attributes
    ----------
    rank, size : int
        Of the communicator.
    largest_tag : int
        Tags go from 0 to this; users' tags are followed by a code of ``DTYPES``.
    shared : SharedMemory or None
        The access to peers' memory, if they share it.
    persistent : Persistent or None
        How messages are bound to their arrays; None if impossible or useless.
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
        """Begin to send a packet: at most ``PACKET_BYTES`` bytes, whose number the receiver need not know.

        Packets match packets alone, in their order: another message between the two ranks has another tag.
        """

    def irecv_packet(self, src: int, tag: int) -> Packet:
        """Begin to receive a packet from rank `src`."""

    def receiving(self, src: int, tag: int) -> Receiving:
        """Return functions that begin it as steps: for a receive, and for a send beside it."""

    def isend_again(self, data: Array, dst: int, tag: int) -> BoundSet:
        """Return messages that send this array to rank `dst`, as `isend` does, at each start."""

    def irecv_again(self, data: Array, src: int, tag: int) -> BoundSet:
        """Return the messages that receive from rank `src`, as `irecv` does, at each start."""

    def look(self, src: int, tag: int, nbytes: int, *, take: bool = False) -> bool:
        """Tell whether a receive of `nbytes` bytes that has waited long seems to wait in vain.

        Asked now and then for the first incomplete receive of `src` and `tag`. It may err once, if
        the awaited message has come in the meantime. Never blocks.

        Parameters
        ----------
        src, tag : int
            As of the receive.
        nbytes : int
            Bytes that it waits for.
        take : bool
            Take what came instead, so that its sender can go on, and raise.

        Raises
        ------
        BufferMismatch
            With `take`, if another message came.
        """


def begun_anew(begin: Callable[[], Request]) -> BoundSet:
    """Return a persistent transfer that is a new one each time, for transports that know no others."""
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
    """Return a number below ``DTYPES`` for a dtype, the same on all ranks."""
    known = _CODES.get(dtype)
    if known is not None:
        return known
    kinds = list(_KINDS)
    kind = dtype.kind if dtype.kind in kinds else "other" if dtype.names is None else "structured"
    which = kinds.index(kind) * _EACH + crc32(repr(dtype).encode()) % _EACH
    code, name = 1 + len(_CODES) + which, f"dtype {dtype}"
    if _OWN.setdefault(code, name) != name:  # several have this code
        _OWN[code] = _KINDS[kind]
    return code


def dtype_of(tag: int) -> DType | None:
    """Return the dtype that the tag of a user's message has; None of a structured one, say."""
    return _DTYPES.get(tag % DTYPES)


def other_dtype(src: int, came: int, tag: int) -> BufferMismatch:
    """Return the error of a message of another dtype: that came with one tag, and not with `tag`."""
    sent, code = _NAMES[came % DTYPES], tag % DTYPES
    taken = _OWN.get(code, _NAMES[code])
    error = BufferMismatch(
        f"rank {src} sent {sent}, and the array has {taken}; give an array of the dtype that is sent"
    )
    error.ranks = (src,)
    return error


def check_fit(src: int, came: int, tag: int, arrived: int, expected: int) -> None:
    """Raise unless a message came with the tag and the size of the receive that took it."""
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
    """Takes the place of a rank or a tag."""

    ANY = "any"

    __hash__ = object.__hash__  # as it is a part of what calls are looked up by

    def __repr__(self) -> str:
        return "hpccomm.ANY"


ANY = Anything.ANY
"""Any rank as sender, or any tag."""


class Wanted(NamedTuple):
    """Which messages are wanted.

    Attributes
    ----------
    src : int or None
        Their sender; None is any.
    fits : callable
        Tells whether the transport's tag of a message is wanted.
    tags : sequence of int
        The transport's tags that fit, if these are few; else empty.
    exact : int or None
        The tag that is looked for before others, which any sender's message has that fits an array.
    """

    src: int | None
    fits: Callable[[int], bool]
    tags: Sequence[int]
    exact: int | None = None

    def meets(self, other: "Wanted", samples: Sequence[int]) -> bool:
        """Return whether a message may be wanted by both. `samples` stands for all tags."""
        if None not in (self.src, other.src) and self.src != other.src:
            return False
        return any(self.fits(tag) and other.fits(tag) for tag in self.tags or other.tags or samples)


class Arrival(NamedTuple):
    """A message that no other receive gets any more.

    Attributes
    ----------
    src : int
        Its sender.
    tag : int
        The transport's.
    nbytes : int
        Its size.
    receive : callable
        ``receive(data)`` returns the steps that receive it into a C-contiguous array of the same
        size. None as `data` drops it. To be called once; until then a large message keeps its
        sender waiting.
    """

    src: int
    tag: int
    nbytes: int
    receive: Callable[[NDArray[Any] | None], Steps]


class Arrivals(Protocol):
    """Looks for messages to this rank on the transport of users' messages.

    A backend has it as its attribute ``arrivals``. A backend without it cannot receive from any
    sender.
    """

    def take(self, wanted: Wanted) -> Generator[bool, None, Arrival | None]:
        """Take a wanted message that has arrived, polled; return None at once without one.

        A message for an earlier receive belongs to that receive. Of messages with one sender and
        tag, the first is taken. Without a list of tags in `wanted`, a message behind an unwanted
        one of the same sender may have to wait for that one's receive.
        """
