"""The uncaught exception of this process: its stored facts, and its printed text.

`hpccomm.backends.bootstrap.shutdown`, which ends the process, uses it. `hpccomm.jax` registers the errors that stand
for hpccomm's. `hpccomm.communicator.groups` puts the error of another rank into words.
"""

import os
import re
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType
from typing import Any

from hpccomm.errors import CommunicationError, WaitTimeout
from hpccomm.runtime import answering, dump
from hpccomm.runtime.recorder import described, in_words, mishap, of_program, site_of_traceback
from hpccomm.runtime.service import status_of
from hpccomm.settings import read
from hpccomm.spelling import respell
from hpccomm.units import ranks_named

MOST_FRAMES = 20
"""Most frames of the program that are printed of a traceback. Of a longer one, such as a recursion's, the outermost
and the innermost frames are printed."""

WITH_SOURCE = 2
"""Up to so many frames are all printed with their source line; of more frames, only the innermost is."""

MOST_LINES = 6
"""Lines of frames and of the error's text together; one line of text is always printed."""

MOST_OTHERS = 2
"""Most different errors of other ranks that are printed."""


def note(error: BaseException) -> Mapping[str, Any]:
    """Store the exception that ends the process, for the dump and for other ranks; return its facts.

    They are those of `Mishap.facts`, and:

    - ``"order"``, by which ranks know the first exception of the job,
    - ``"status"``, the exit status that the exception gives the process,
    - ``"exits"``, whether it is a `SystemExit`,
    - ``"own"``, whether it began in this rank's program. A `CommunicationError` other than `WaitTimeout` did not: it
      follows from something else.
    """
    respell(error)
    kept = mishap(error, site_of_traceback(error.__traceback__)).facts()
    dump.process.raised = {**kept, "stack": "".join(traceback.format_exception(error))}
    dump.process.reason = dump.process.reason or in_words(error)
    facts = {
        **kept,
        "order": _order(error),
        "status": int(status_of(error)),
        "exits": isinstance(error, SystemExit),
        "own": not isinstance(error, CommunicationError) or isinstance(error, WaitTimeout),
    }
    answering.note(raised=facts)
    return facts


def _order(error: BaseException) -> tuple[float, int]:
    """Return when this process first told of the exception, or of one that led to it, and the process's number.

    The first call stores them in the exception.
    """
    for each in chain(error):
        if hasattr(each, MARK):
            order: tuple[float, int] = getattr(each, MARK)
            return order
    order = time.time(), os.getpid()
    setattr(error, MARK, order)
    return order


def chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception and those that led to it, `MOST_FRAMES` at most."""
    each: BaseException | None = error
    for _ in range(MOST_FRAMES):
        if each is None:
            return
        yield each
        each = each.__cause__ or each.__context__


def follows(own: Mapping[str, Any], first: Mapping[str, Any]) -> bool:
    """Whether the exception of this rank follows from `first`, the first exception of the job.

    The program's own exception does so if both have the same words: one rank prints it for all.
    """
    return not own["own"] or _kind(own["error"]) == _kind(first["error"])


own_errors = list[Callable[[BaseException], BaseException | None]]()
"""Functions that take another library's error and return the error of hpccomm that it stands for, or None."""


def own_error(error: BaseException) -> BaseException:
    """Return the error of hpccomm that another library's error stands for, with the same traceback; else `error`."""
    for each in own_errors:
        if (own := each(error)) is not None:
            return own.with_traceback(error.__traceback__)
    return error


MARK = "_hpccomm_told"
"""Attribute of an exception that other ranks were told of. It is stored in the exception, since a table of exceptions
would keep alive all objects of their frames."""


def told(error: BaseException) -> str:
    """Return an error in words, with the line of the program that raised it."""
    return f"{mishap(error, None).error}{came_from(error)}"


def came_from(error: BaseException) -> str:
    """Return the line of the program that raised an error, as a clause; empty if it is not known."""
    where = described(site_of_traceback(error.__traceback__))
    return f" at {where}" if where else ""


def report(error: BaseException) -> list[str]:
    """Return the lines to print of an error: the frames of the program, without those of libraries, and the text.

    With ``HPCCOMM_DEBUG`` it is the whole traceback.
    """
    if read("HPCCOMM_DEBUG"):
        return "".join(traceback.format_exception(error)).splitlines()
    stack = list(traceback.walk_tb(error.__traceback__))
    own = [each for each in stack if of_program(each[0].f_code.co_filename)] or stack
    half = MOST_FRAMES // 2
    lines = _formatted(own if len(own) <= MOST_FRAMES else own[:half])
    if len(own) > MOST_FRAMES:
        lines.append(f"  ... {len(own) - MOST_FRAMES} more (HPCCOMM_DEBUG=1 shows them) ...")
        lines += _formatted(own[-half:])
    words = "".join(traceback.format_exception_only(error)).splitlines()
    most = max(1, MOST_LINES - len(lines))
    lines += words[:most]
    if len(words) > most:
        lines[-1] += f" ... ({len(words) - most} more lines)"
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if cause is not None and str(cause) not in str(error):
        lines[-1] += f" (caused by {in_words(cause).splitlines()[0]})"
    return ["Traceback (most recent call last):", *lines]


def _formatted(stack: Sequence[tuple[FrameType, int]]) -> list[str]:
    """Return the lines of frames. Up to `WITH_SOURCE` frames have their source line; of more, only the last has it."""
    frames = traceback.StackSummary()
    for number, (frame, line) in enumerate(stack, 1):
        with_text = len(stack) <= WITH_SOURCE or number == len(stack)
        text = None if with_text else ""  # for None, traceback looks the source line up
        code = frame.f_code
        frames.append(traceback.FrameSummary(code.co_filename, line, code.co_name, line=text))
    return "".join(frames.format()).splitlines()


def beside(mine: Mapping[str, Any], others: Mapping[int, Mapping[str, Any]]) -> str:
    """Return the errors of other ranks, as a clause that follows this rank's error."""
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
    """Return an error's words with its numbers replaced, since ranks, processes and bytes differ between ranks."""
    return re.sub(r"\d+", "#", words)
