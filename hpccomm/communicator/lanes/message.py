"""Messages between two ranks: what is asked for, and what tags they have."""

from typing import Any, NamedTuple

from hpccomm.contracts.transport import DTYPES, dtype_code
from hpccomm.dtypes import DType
from hpccomm.memory.cuda.arrays import Queue
from hpccomm.memory.views import View

# Arrays and objects share the transport; one bit of the tag keeps them apart.
ARRAYS, OBJECTS = 0, 1


def wire_tag(tag: int, kind: int, dtype: DType | None = None) -> int:
    """Return the transport's tag for the user's `tag`, a kind of message and its dtype, if it has one."""
    return (2 * tag + kind) * DTYPES + (0 if dtype is None else dtype_code(dtype))


class MessageRequest(NamedTuple):
    """What a point-to-point call is asked for, checked.

    Attributes
    ----------
    name : str
        Name of the call.
    source, target : View or None
        What is sent, and what takes what is received, as communication sees them.
    to, origin : int or None
        The receiver and the sender; None where the call does nothing there.
    tag : int
        The user's.
    replaced : bool
        Whether what is received takes the place of what is sent.
    result : object
        What the call returns.
    keep : tuple
        The user's arrays.
    queue : tuple of int and object, or None
        As in `Call`.
    """

    name: str
    source: View | None
    to: int | None
    target: View | None
    origin: int | None
    tag: int
    replaced: bool
    result: Any
    keep: tuple[Any, ...]
    queue: Queue | None
