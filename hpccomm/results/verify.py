"""Everything in a results file against its checksums: a line a run."""

from pathlib import Path
from typing import NamedTuple

from hpccomm.results import reader, sealed, training_file
from hpccomm.results.reader import Examined
from hpccomm.results.run import Run, Steps, WholeSamples


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


def verify(path: Path, progress: Steps | None = None) -> Verification:
    """Check everything in a file: runs, trainings, and what is outside of them.

    Parameters
    ----------
    path : Path
        The file.
    progress : Steps, optional
        Advances by one for each row.

    Raises
    ------
    ResultsError
        If it is no results file, cannot be read, or nothing of it can be trusted.
    """
    examined = reader.examine(path)
    trainings, lost = training_file.examine(path, examined)
    if progress is not None:
        progress.remain(sum(len(run.rows) for run in examined.runs))
    spare = {run.name: run.spare() for run in examined.runs}
    damage = {run.name: _damage(run, spare[run.name], examined, progress) for run in examined.runs}
    lines = [_line(run, damage[run.name], spare[run.name], examined) for run in examined.runs]
    names = tuple(f"{name}: " for name in damage)
    outside = [what for what in examined.damage if not what.startswith(names)]
    if examined.changed and not examined.damage:
        outside.append(
            "outside of the runs: changed since hpccomm wrote it, by another program or by damage; what "
            "hpccomm reads is as it was stored"
        )
    lines += [
        f"{each.name}: {each.status.partition(':')[0]}, {len(each.steps)} steps: as they were stored"
        for each in trainings
    ]
    whole = not (outside or lost or any(damage.values()))
    return Verification([*lines, *(f"DAMAGED: {each}" for each in lost), *outside], whole)


def _damage(run: Run, spare: str, examined: Examined, progress: Steps | None) -> list[str]:
    prefix = f"{run.name}: "
    found = [what.removeprefix(prefix) for what in examined.damage if what.startswith(prefix)]
    samples = WholeSamples(run, progress)
    for index in range(len(run.rows)):
        samples(index)
        samples.isolated(index)
    found += [what.removeprefix(prefix) for what in samples.damage()]
    if spare == sealed.FILLED:
        found.append(spare)
    return found


def _line(run: Run, damage: list[str], spare: str, examined: Examined) -> str:
    what = f"{run.name}: {run.status.partition(':')[0]}, {len(run.rows)} rows: "
    if damage:
        return f"{what}DAMAGED: {'; '.join(damage)}"
    if not examined.checked:
        return f"{what}no checksums, written by an older version"
    note = f"; the run has no end, and {spare}" if spare else ""
    return f"{what}facts, rows and samples are as they were stored{note}"
