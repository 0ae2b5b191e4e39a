"""Everything in a results file against its checksums: a line a run."""

from pathlib import Path
from typing import NamedTuple

from hpccomm.results import reader
from hpccomm.results.reader import Examined, Run, WholeSamples


class Verification(NamedTuple):
    """What a check found.

    Attributes
    ----------
    lines : list of str
        A line for each run, and one for what is outside of runs.
    whole : bool
        Whether all is as it was stored.
    """

    lines: list[str]
    whole: bool


def verify(path: Path) -> Verification:
    """Check everything in a file.

    Raises
    ------
    ResultsError
        If it is no results file, cannot be read, or nothing of it can be trusted.
    """
    examined = reader.examine(path)
    damage = {run.name: _damage(run, examined) for run in examined.runs}
    lines = [_line(run, damage[run.name], examined) for run in examined.runs]
    names = tuple(f"{name}: " for name in damage)
    outside = [what for what in examined.damage if not what.startswith(names)]
    if examined.changed and not examined.damage:
        outside.append(
            "outside of the runs: changed since hpccomm wrote it, by another program or by damage; what "
            "hpccomm reads is as it was stored"
        )
    whole = not (outside or any(damage.values()))
    return Verification([*lines, *outside], whole)


def _damage(run: Run, examined: Examined) -> list[str]:
    prefix = f"{run.name}: "
    found = [what.removeprefix(prefix) for what in examined.damage if what.startswith(prefix)]
    samples = WholeSamples(run)
    for index in range(len(run.rows)):
        samples(index)
    found += [what.removeprefix(prefix) for what in samples.damage()]
    if not run.room_is_empty():
        found.append("space that holds nothing yet: not empty")
    return found


def _line(run: Run, damage: list[str], examined: Examined) -> str:
    what = f"{run.name}: {run.status.partition(':')[0]}, {len(run.rows)} rows: "
    if damage:
        return f"{what}DAMAGED: {'; '.join(damage)}"
    if not examined.checked:
        return f"{what}no checksums, written by an older version"
    return f"{what}facts, rows and samples are as they were stored"
