"""Checks all that hpccomm reads of a results file against its checksums.

`hpccomm show --verify` prints it, a line a run.
"""

from pathlib import Path
from typing import NamedTuple

from hpccomm.results import reader
from hpccomm.results.lines import DamagedPart
from hpccomm.results.recording_text import contents
from hpccomm.results.run import Steps, WholeSamples
from hpccomm.units import counted, grouped


class Verification(NamedTuple):
    """The outcome of a check.

    Attributes
    ----------
    lines : list of str
        A line for each run and recording.
    whole : bool
        Whether all is as it was stored.
    """

    lines: list[str]
    whole: bool


def verify(path: Path, progress: Steps | None = None) -> Verification:
    """Check the facts, rows and samples of all runs of a file, and its recordings.

    Parameters
    ----------
    path : Path
        The file.
    progress : Steps, optional
        Advances by one for each row.

    Raises
    ------
    ResultsError
        If it is not a results file, or cannot be read.
    """
    examined = reader.examine_all(path)
    if progress is not None:
        progress.remain(sum(len(run.rows) for run in examined.runs))
    damage = list(examined.damage)
    counts = {}
    for run in examined.runs:
        samples = WholeSamples(run, progress)
        for index in range(len(run.rows)):
            samples(index)
            samples.whole("isolated", index)
        damage += samples.damage()
        counts[run.name] = f"{run.status.partition(':')[0]}, {counted(len(run.rows), 'row')}"
    for recording in examined.recordings:
        for index in range(len(recording.steps)):
            try:
                recording.bucket_seconds(index)
            except DamagedPart as error:
                damage.append(f"{recording.name}: {error}")
        counts[recording.name] = f"{recording.status.partition(':')[0]}, {contents(recording)}"
    by_name = grouped((name, what) for name, _, what in (each.partition(": ") for each in damage))
    lines = []
    for name in counts | by_name:
        faults = "; ".join(by_name.get(name, ()))
        whole = f"DAMAGED: {faults}" if faults else "all as it was stored"
        lines.append(": ".join(filter(None, (name, counts.get(name, ""), whole))))
    return Verification(lines, not damage)
