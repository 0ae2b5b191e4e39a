"""Which program a log is of, and its runs."""

from pathlib import Path
from typing import TYPE_CHECKING

from hpccomm.bench.logs import nccl_json, nccl_text, osu
from hpccomm.bench.logs.imported import ImportedRun, Told
from hpccomm.bench.logs.lines import untagged
from hpccomm.errors import ResultsError

if TYPE_CHECKING:
    from os import PathLike


def parse(text: str, told: Told) -> list[ImportedRun]:
    """Return the runs of a log.

    Parameters
    ----------
    text : str
        What the program printed or wrote.
    told : Told
        What the log may not say.

    Raises
    ------
    ResultsError
        If it is of no program that is known, is damaged, has no rows, or lacks something that `told` does too.
    """
    if "\0" in text:
        raise ResultsError(f"{told.name} is not text: it has null characters; give a log")
    lines = untagged(text)
    if nccl_json.is_one(text):
        runs = nccl_json.parse(text, told)
    elif osu.is_one(lines):
        runs = osu.parse(text, told)
    elif nccl_text.is_one(lines):
        runs = nccl_text.parse(text, told)
    else:
        raise ResultsError(
            f"{told.name} has no table of nccl-tests or OSU, and is no JSON; give what such a program printed"
        )
    if not any(run.rows for run in runs):
        raise ResultsError(
            f"{told.name} has no rows; give the log of a run that measured something"
        )
    return runs


def store(path: "str | PathLike[str]", runs: list[ImportedRun]) -> list[str]:
    """Add runs to a results file; return their names there.

    Raises
    ------
    ResultsError
        If it cannot be written. Runs that were added before stay.
    """
    from hpccomm.results.writer import Writer  # loads h5py

    names = []
    for run in runs:
        repetitions = sum(len(each) for each in run.samples if each is not None)
        writer = Writer(
            Path(path), run.info, expected_rows=len(run.rows), expected_repetitions=repetitions
        )
        for row, samples in zip(run.rows, run.samples, strict=True):
            writer.append(row, samples)
        writer.end(run.status, run.ended or run.info.started)
        names.append(writer.name)
    return names
