"""Whether a program went on after a failure that stands in its log.

Programs log what they catch: a package that is missing, a server that does not answer, memory that was too little
for the first try. `reading` asks about each failure that a program can catch, and `report` leaves those that
it survived out of the causes.
"""

import re
from collections.abc import Iterable
from itertools import islice, takewhile

from hpccomm.diagnosis.meanings import rows

ENDED, PROGRESS, SAID = range(3)
"""Nothing tells that it went on; lines of progress follow, or lines that differ in numbers alone, as loops print
them; the program says so itself."""

NEAR, MOST = 3, 20
"""Lines after a failure in which a program says how it goes on, and in which progress is looked for; those that
are about the failure do not count."""

_CATCHABLE, _GOES_ON, _MILD, _FOLLOWS, _LAUNCHER, _PROGRESS = (
    re.compile("|".join(row["regex"] for row in rows("afterwards.tsv") if row["what"] == what))
    for what in ("catchable", "goes on", "mild", "follows", "launcher", "progress")
)


def went_on(component: str, before: str, said: str, after: Iterable[str]) -> int:
    """Return how a program went on after a failure.

    Parameters
    ----------
    component : str
        Whose failure it is.
    before : str
        The line before a traceback; empty for a failure of one line.
    said : str
        That line; empty for a traceback.
    after : iterable of str
        The lines of the same rank that follow. Ranks that do not tag their lines may be mixed.

    Returns
    -------
    int
        `ENDED`, `PROGRESS` or `SAID`.
    """
    if not _CATCHABLE.fullmatch(component) or _LAUNCHER.match(said):
        return ENDED
    if _GOES_ON.search(said) or _MILD.search(said):
        return SAID
    own = takewhile(lambda line: not _LAUNCHER.match(line), after)
    ordinary = (line for line in own if not _FOLLOWS.match(line) or _GOES_ON.search(line))
    first, progress, loop = dict[str, str](), set[str](), False
    for number, line in enumerate(islice(ordinary, MOST)):
        if number < NEAR and _GOES_ON.search(line):
            return SAID
        alike = first.setdefault(re.sub(r"[\d.]+", "0", line), line)
        loop = loop or alike != line
        if loop or _PROGRESS.match(line):
            progress.add(line)
        if loop and number >= NEAR - 1:
            break
    if progress and (_GOES_ON.search(before) or _MILD.search(before)):
        return SAID
    return PROGRESS if loop or len(progress) > 1 else ENDED
