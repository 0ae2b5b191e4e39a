"""Python's tracebacks in a log: the exception, and the line of the user's program.

`reading` gives it the lines after the beginning of a traceback.
"""

import re
from collections.abc import Iterable
from typing import NamedTuple

BEGIN = "Traceback (most recent call last)"
FATAL = "Fatal Python error: "
BEGINS = (BEGIN, FATAL)
"""How a traceback begins, and what faulthandler writes, whose first frame is the innermost."""

MOST_SAID = 10
"""Lines of an exception that are read."""

_FRAME = re.compile(r'\s*File "(?P<file>[^"]+)", line (?P<line>\d+)(?:,)? in (?P<name>\S+)')
_FOREIGN = re.compile(
    r"site-packages|dist-packages|/lib(?:64)?/python\d|^<|\.p[yx]x?d$|\.pyx$|/hpccomm/(?:backends|bench|cli|communicator|dispatch|gradients|memory|runtime)/"
)
_IN_GROUP = re.compile(r"^ +[|+] ?")
"""Before each line of a traceback of an exception group."""
_RAISED = re.compile(r"(?:[\w.]*\.)?\w+(?:: .*)?$")


class Traceback(NamedTuple):
    """The contents of a traceback.

    Attributes
    ----------
    line : int
        The number of the line that has the exception.
    text : str
        The exception, and lines after it that may belong to it.
    place : str
        Where in the user's program, such as ``train.py line 41, in step``; empty if it is in none of its files.
    """

    line: int
    text: str
    place: str


def read(lines: Iterable[tuple[int, str]]) -> Traceback | None:
    """Read a traceback.

    Parameters
    ----------
    lines : iterable of (int, str)
        Lines of one rank, from the traceback's first on, with their numbers. Lines of two ranks
        without tags may be mixed.

    Returns
    -------
    Traceback or None
        None if it has no end.
    """
    place, raised, framed, in_group = "", 0, False, False
    said: list[str] = []
    for number, line in lines:
        if BEGIN in line:
            in_group = line.lstrip().startswith(("+", "|"))
        if in_group:
            line = _IN_GROUP.sub("", line)
        frame = _FRAME.match(line)
        if raised and (FATAL not in said[0]):  # the exception may have several lines
            if not line.strip() or frame or BEGIN in line or len(said) > MOST_SAID:
                break
            said.append(line)
        elif frame is not None:
            framed = True
            if not _FOREIGN.search(frame["file"]) and not (raised and place):
                name = frame["file"].rpartition("/")[2]
                place = f"{name} line {frame['line']}, in {frame['name']}".replace(
                    ", in <module>", ""
                )
        elif FATAL in line:
            raised, said = number, [line[line.index(FATAL) :]]
        elif raised and (line.startswith("Extension modules") or (place and not line.strip())):
            break
        elif framed and not raised and not line.startswith(" ") and _RAISED.match(line):
            raised, said = number, [line.strip()]
    return Traceback(raised, "\n".join(said), place) if raised else None
