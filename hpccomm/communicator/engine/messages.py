"""Point-to-point calls on arrays."""

from typing import Any

from hpccomm.communicator.engine.core import Core
from hpccomm.communicator.lanes import Message
from hpccomm.errors import UsageError
from hpccomm.memory.views import View, address, check_dtype, check_layout, overlap, view
from hpccomm.settings import check_int
from hpccomm.topology import check_rank


class MessageCalls:
    """Carries out `send`, `recv` and `send_recv`."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def exchange(
        self,
        name: str,
        given: dict[str, Any],
        dst: int | None,
        src: int | None,
        tag: int,
        async_op: bool,
        timeout: float | None,
        stream: object,
    ) -> Any:
        """Carry a call out, and return its result, or its `Work`.

        Parameters
        ----------
        name : str
            Name of the call.
        given : dict
            The arrays that it has: ``"x"`` is sent, ``"out"`` takes what is received.
        dst, src : int or None
            The receiver and the sender.
        tag, async_op, timeout, stream
            As the user gave them.
        """
        core = self._core
        with core.calls.one_call():
            for which, array in given.items():
                if array is None:
                    view(array, which)  # which says what is wrong
            lane, source, target = core.lanes.views(given.get("x"), given.get("out"))
            _check("x", source, written=False)
            _check("out", target, written=True)
            queue = None if stream is None else lane.queue_of(stream)
            size = core.backend.size
            to = None if dst is None else check_rank("dst", dst, size)
            origin = None if src is None else check_rank("src", src, size)
            if source is not None and target is not None:
                _check_overlap(source, target)
            message = Message(
                name,
                source,
                to,
                target,
                origin,
                checked_tag(core, tag),
                given.get("out"),
                tuple(given.values()),
                queue,
            )
            return core.issue(lane.message(message), async_op, core.limit(timeout))


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


def _check(name: str, array: View | None, *, written: bool) -> None:
    if array is not None:
        check_dtype(name, array.dtype)
        check_layout(array, name, written=written)


def _check_overlap(source: View, target: View) -> None:
    same = source.nbytes == target.nbytes and address(source) == address(target)
    if not same and overlap(source, target):
        raise UsageError(
            "x and out of send_recv overlap; give out=x, or arrays that share no memory"
        )
