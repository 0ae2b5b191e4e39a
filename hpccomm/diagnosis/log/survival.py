"""Whether a program went on after a failure that stands in its log.

Programs log what they catch: a package that is missing, a server that does not answer, memory that was too little
for the first try. `reading` asks about each failure that a program can catch, and `report` leaves those that
it survived out of the causes.
"""

import re
from collections import Counter
from collections.abc import Iterable
from itertools import islice, takewhile

from hpccomm.diagnosis.meanings import rows

ENDED, PROGRESS, SAID = range(3)
"""Nothing tells that it went on; lines of progress follow; the program says so itself."""

NEAR, MOST = 3, 40
"""Lines after a failure in which a program says how it goes on, and in which progress is looked for."""

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
    own = takewhile(lambda line: not _LAUNCHER.match(line), islice(after, MOST))
    lines = [line for line in own if _GOES_ON.search(line) or not _FOLLOWS.match(line)]
    if any(_GOES_ON.search(line) for line in lines[:NEAR]):
        return SAID
    forms = {line: re.sub(r"[\d.]+", "0", line) for line in lines}
    often = Counter(forms.values())  # a loop goes on, whatever it prints
    progress = [line for line in forms if _PROGRESS.match(line) or often[forms[line]] > 1]
    if progress and (_GOES_ON.search(before) or _MILD.search(before)):
        return SAID
    return PROGRESS if len(progress) > 1 else ENDED
