"""NCCL's groups: calls between start and end go out together, and may wait for each other."""

import contextlib
from types import TracebackType

from hpccomm.backends.nccl.libnccl import binding


class NcclGroup:
    """Issues what is called in its block together, at its end. They nest; the outermost counts.

    A group that was begun is ended, also if the block raises: NCCL counts them per thread, and would
    hold back every later call.
    """

    __slots__ = ("_end", "_start")

    def __init__(self) -> None:
        library = binding()
        self._start = library.groupStart
        self._end = library.groupEnd

    def __enter__(self) -> None:
        self._start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        if error is None:
            self._end()
            return
        # NCCL's own error says again that a call of the block failed; that one goes on.
        with contextlib.suppress(RuntimeError, KeyError):
            self._end()
