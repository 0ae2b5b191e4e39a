"""NCCL's groups: calls between start and end are issued together, and may wait for each other.

`backend` and `collectives` issue batches and composed calls in them.
"""

import contextlib
from types import TracebackType

from hpccomm.backends.nccl.libnccl import binding


class NcclGroup:
    """Issues the calls of its block together, at its end. Groups nest; the outermost one issues.

    A group ends even if the block raises: NCCL counts groups per thread, and an open group would hold
    back every later call.
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
        # NCCL's own error repeats that a call of the block failed; the original error is raised.
        with contextlib.suppress(RuntimeError, KeyError):
            self._end()
