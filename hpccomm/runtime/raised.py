"""The uncaught exception of this process: its stored facts, and its printed text.

The exits (`hpccomm.backends.bootstrap.shutdown`) and dumps use it.
"""

import re
import traceback
from collections.abc import Iterator, Mapping
from types import FrameType, TracebackType
from typing import Any

from hpccomm.runtime import dump
from hpccomm.runtime.recorder import PACKAGE, in_standard, in_words, mishap, site_of_traceback
from hpccomm.settings import read
from hpccomm.units import ranks_named

MOST_FRAMES = 4
"""Lines of the program that are printed of a traceback; of more, one of the outermost and two of the innermost."""

WITH_SOURCE = 2
"""The most of them to print with their text; further ones only with the innermost."""

MOST_LINES = 6
"""Lines of frames and words together."""

MOST_OTHERS = 2
"""Other errors of other ranks that are printed."""


def note(error: BaseException, where: TracebackType | None) -> Mapping[str, Any]:
    """Store the exception that ends the process, for dump and other ranks; return the facts."""
    kept = mishap(error, site_of_traceback(where)).facts()
    stack = "".join(traceback.format_exception(type(error), error, where))
    dump.process.raised = {**kept, "stack": stack}
    dump.process.reason = dump.process.reason or in_words(error)
    return kept


def report(error: BaseException, where: TracebackType | None) -> list[str]:
    """Return the lines that are printed: the program's frames, and the error.

    ``HPCCOMM_DEBUG`` shows all frames, and every word.
    """
    if read("HPCCOMM_DEBUG"):
        return "".join(traceback.format_exception(type(error), error, where)).splitlines()
    frames = list(_of_program(where)) or list(traceback.walk_tb(where))
    lines = []
    left = len(frames) - MOST_FRAMES + 1 if len(frames) > MOST_FRAMES else 0
    for number, (frame, line) in enumerate(frames):
        if left and number == 1:
            lines.append(f"  ... {left} more (HPCCOMM_DEBUG=1 shows them) ...")
        if 1 <= number <= left:
            continue
        each = traceback.FrameSummary(frame.f_code.co_filename, line, frame.f_code.co_name)
        lines.append(f'  File "{each.filename}", line {line}, in {each.name}')
        if each.line and (len(frames) <= WITH_SOURCE or number == len(frames) - 1):
            lines.append(f"    {each.line}")
    words = "".join(traceback.format_exception_only(error)).splitlines()
    most = max(1, MOST_LINES - len(lines))
    lines += words[:most]
    if len(words) > most:
        lines[-1] += f" ... ({len(words) - most} more lines)"
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if cause is not None and str(cause) not in str(error):
        lines[-1] += f" (caused by {in_words(cause).splitlines()[0]})"
    return ["Traceback (most recent call last):", *lines]


def beside(mine: Mapping[str, Any], others: Mapping[int, Mapping[str, Any]]) -> str:
    """Return the errors of other ranks, as a clause behind this rank's error."""
    groups: dict[str, list[int]] = {}
    for rank, each in sorted(others.items()):
        groups.setdefault(_kind(each["error"]), []).append(rank)
    same = groups.pop(_kind(mine["error"]), [])
    told = f"; {ranks_named(same)} raised the same" if same else ""
    for ranks in list(groups.values())[:MOST_OTHERS]:
        each = others[ranks[0]]
        at = f" at {each['site']}" if each["site"] else ""
        told += f"; {ranks_named(ranks)} raised{at}: {each['error'].splitlines()[0]}"
    return told


def _kind(words: str) -> str:
    """Return an error's words without numbers: ranks, processes and bytes differ."""
    return re.sub(r"\d+", "#", words)


def _of_program(where: TracebackType | None) -> Iterator[tuple[FrameType, int]]:
    """Yield the frames of a traceback that are not hpccomm's, nor Python's own within a call of hpccomm."""
    within = False
    for frame, line in traceback.walk_tb(where):
        file = frame.f_code.co_filename
        within = file.startswith((PACKAGE, "<frozen ")) or (within and in_standard(frame))
        if not within:
            yield frame, line
