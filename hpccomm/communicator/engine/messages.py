"""Point-to-point calls on arrays."""

from typing import Any

from hpccomm.communicator.core import Core
from hpccomm.communicator.lanes import PointToPoint
from hpccomm.errors import UsageError
from hpccomm.memory.views import View, address, check_dtype, overlap, view
from hpccomm.settings import check_int
from hpccomm.topology import check_rank


class MessageCalls:
    """Carries out `send`, `recv` and `send_recv`."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def exchange(
        self,
        name: str,
        x: Any,
        dst: int | None,
        out: Any,
        src: int | None,
        tag: int,
        async_op: bool,
        timeout: float | None,
        stream: object,
    ) -> Any:
        """Carry a call out, and return its result, or its `Work`.

        Parameters are those of `send_recv`; `send` has no `out` and `recv` no `x`.
        """
        core = self._core
        with core.calls.one_call():
            lane, source, target = core.lanes.views(x, out)
            if source is not None:
                check_dtype("x", source.dtype)
                source = lane.prepared(source, "x", False)
            elif name != "recv":
                view(x, "x")  # which says what is wrong
            if target is not None:
                check_dtype("out", target.dtype)
                target = lane.prepared(target, "out", True)
            elif name != "send":
                view(out, "out")
            queue = None if stream is None else lane.queue_of(stream)
            to = None if dst is None else check_rank("dst", dst, core.backend.size)
            origin = None if src is None else check_rank("src", src, core.backend.size)
            replaced = source is not None and target is not None and _replaced(source, target)
            number = checked_tag(core, tag)
            keep = (x,) if out is None else (out, x)
            call = lane.message(
                PointToPoint(name, source, to, target, origin, number, replaced, out, keep, queue)
            )
            return core.issue(call, async_op, core.limit(timeout))


def checked_tag(core: Core, tag: object) -> int:
    """Return the user's tag.

    Raises
    ------
    UsageError
        If it is none.
    """
    largest = core.backend.messages.largest_tag // 2 - 1
    number = check_int("tag", tag)
    if not 0 <= number <= largest:
        raise UsageError(f"tag is {tag!r}; give an integer from 0 to {largest}")
    return number


def _replaced(source: View, target: View) -> bool:
    """Return whether what is received takes the place of what is sent; any other overlap is refused."""
    if not overlap(source, target):
        return False
    if source.nbytes == target.nbytes and address(source) == address(target):
        return True
    raise UsageError("x and out of send_recv overlap; give out=x, or arrays that share no memory")
