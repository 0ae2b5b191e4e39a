"""A program that has ended, while a thread of its own keeps the process alive.

Python waits for such threads before any function of `atexit` runs. The other ranks would wait as
well. `ends` starts the watch.
"""

import threading
import types
from collections.abc import Iterator
from functools import partial
from typing import Any

from hpccomm.backends.bootstrap import presence, status
from hpccomm.runtime import answering
from hpccomm.runtime.recorder import described, frames, in_standard, own_frame, site_of

DEPTH = 3
"""So far a thread's values are followed to something of hpccomm's."""

MOST_VALUES = 100
"""Of each container."""


def look(rank: int, size: int, seconds: float, limit: float) -> str:
    """Tell the other ranks when this one's program ended; return why the job must end.

    A program that leaves with a status other than 0 has failed, and the job ends with it after
    `limit` seconds, unless the other ranks have ended as well. A program that has returned counts
    as gone for the others if none of its threads refers to an object of hpccomm's: else a thread
    may still communicate.
    """
    main = threading.main_thread()
    threads = [each for each in threading.enumerate() if not each.daemon and each is not main]
    if not threads:
        return ""
    at = frames()
    where = described(site_of(own_frame(at.get(threads[0].ident or 0))))
    thread = f"its thread {threads[0].name!r}{f' at {where}' if where else ''}"
    answering.note(over=thread)
    if seconds < limit:
        return ""
    leaving = status.known() or 0
    if not leaving:
        if not any(_communicates(each, at.get(each.ident or 0)) for each in threads):
            answering.note_exit()
        return ""
    if not presence.others_go_on(size):
        return ""
    return (
        f"hpccomm: rank {rank} exits with status {leaving}, and {thread} has kept it for {seconds:.0f} s, while other "
        "ranks go on. The job ends with that status"
    )


def _communicates(thread: threading.Thread, frame: types.FrameType | None) -> bool:
    """Whether a thread may make calls of hpccomm: something that it uses leads there."""
    # Attributes of Python's own lead to the hook of exceptions, which is hpccomm's.
    kept = {"_target", "_args", "_kwargs"}
    values = [each for name, each in vars(thread).items() if name in kept or name[0] != "_"]
    while frame is not None:
        values += frame.f_locals.values()
        if not in_standard(frame):
            values += _globals(frame.f_code, frame.f_globals)
        frame = frame.f_back
    return any(_leads(each, DEPTH) for each in values)


def _globals(code: types.CodeType, names: dict[str, Any]) -> Iterator[Any]:
    return (names[each] for each in code.co_names if each in names)


def _leads(value: object, depth: int) -> bool:
    """Whether a value is an object of hpccomm's, or refers to one."""
    name = value.__name__ if isinstance(value, types.ModuleType) else type(value).__module__
    if str(name).split(".")[0] == "hpccomm":
        return True
    if depth == 0 or isinstance(value, types.ModuleType | threading.Thread):
        return False
    parts: list[object] = []
    match value:
        case types.FunctionType():
            cells = [each for each in value.__closure__ or () if each is not None]
            parts = [*_globals(value.__code__, value.__globals__), *_contents(cells)]
        case types.MethodType():
            parts = [value.__self__, value.__func__]
        case partial():
            parts = [value.func, *value.args, *value.keywords.values()]
        case dict():
            parts = list(value.values())
        case list() | tuple() | set():
            parts = list(value)
        case _:
            parts = list(getattr(value, "__dict__", {}).values())
    return any(_leads(each, depth - 1) for each in parts[:MOST_VALUES])


def _contents(cells: list[types.CellType]) -> Iterator[object]:
    for each in cells:
        try:
            yield each.cell_contents
        except ValueError:  # it is empty
            continue
