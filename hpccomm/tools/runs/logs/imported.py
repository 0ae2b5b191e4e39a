"""A run that another program measured, with the facts that a results file stores of it.

The readers of this package make it; `hpccomm.tools.runs.importing` writes it.

The reason why a program ended, from its log. The readers of tables store it with the run.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType
from typing import Any

import numpy as np

from hpccomm.contracts.collectives import OF_NCCL_TESTS
from hpccomm.results.facts import UNKNOWN_LAUNCHER
from hpccomm.results.schema import (
    Config,
    RankInfo,
    Row,
    RunInfo,
    recorded_environment,
    recorded_slurm,
)
from hpccomm.tools.runs.logs.lines import LogLine

_FAILURES = re.compile(
    r"Test (?:CUDA|HIP|NCCL|CURAND) failure .*|Test timeout .*|(?:NCCL|CUDA|HIP|CuRAND) (?:failure|error) .*"
    r"|DATA VALIDATION ERROR.*|Invalid number of GPUs.*|Segmentation fault.*|[Oo]ut of [Mm]emory.*"
)
_ENDS = re.compile(
    r"exited on signal|exited with (?:status|exit code|code) [1-9]|\bCANCELLED\b|oom-kill|Killed$|Test failure "
    r"|(?:srun|slurmstepd|prterun|mpirun): error: |^\^C"
)
_WARNING = re.compile(r"NCCL WARN .*")
_MOST = 200


def cause(
    log: Sequence[LogLine], begin: int, end: int | None, last: int | None, *, warned: bool
) -> str:
    """Return the line that says why a program ended; empty without one.

    A failed call says more than the program's end, and both say more than a warning.

    Parameters
    ----------
    log : sequence of LogLine
        All lines.
    begin, end : int
        The first line of the program, and the one behind its last; None for the end of the log.
    last : int or None
        The line of its last row: a warning before that was none of the cause.
    warned : bool
        Whether warnings count.
    """
    failure = ended = warning = ""
    for line in log:
        if line.number < begin or (end is not None and line.number >= end):
            continue
        if not failure and (match := _FAILURES.search(line.text)):
            failure = match[0]
        elif not ended and _ENDS.search(line.text):
            ended = line.text
        elif warned and not warning and line.number >= (last or begin):
            warning = match[0] if (match := _WARNING.search(line.text)) else ""
    return (failure or ended or warning).strip()[:_MOST]


COMPLETED = "completed"
INTERRUPTED = "failed: interrupted: "
"""Beginning of the status of a run that did not come to its end; the cause follows."""

CUT = INTERRUPTED + "the log ends before the run does"
"""Status of a run whose log has no end, and no cause of it."""

LIMIT = 1 << 63
"""Of the integers of a results file."""

NAMES = {name.replace("_", ""): name for name in OF_NCCL_TESTS} | {
    "reducescatterblock": "reduce_scatter",
    "bcast": "broadcast",
}
"""Names that programs have for a collective, without underscores."""


@dataclass(slots=True)
class ImportedRun:
    """One run of a log.

    Attributes
    ----------
    info : RunInfo
        Its facts, as far as the log has them.
    rows : list of Row
        Its measurements.
    samples : list of ndarray or None
        Seconds of each repetition on each rank, for each row.
    status : str
        ``"completed"``, or ``"failed: "`` and why.
    ended : datetime or None
        When it ended, if the log says so.
    line : int
        Where it begins in the log, from 1.
    notes : list of str
        What is not stored.
    """

    info: RunInfo
    rows: list[Row] = field(default_factory=list)
    samples: list[np.ndarray | None] = field(default_factory=list)
    status: str = COMPLETED
    ended: datetime | None = None
    line: int = 1
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class LeftOutTable:
    """A table of a log that is not stored.

    Attributes
    ----------
    line : int
        Where it begins in the log, from 1.
    what : str
        The table.
    why : str
        The reason, and what to do.
    unlike : bool
        Whether the table is whole, but measures something that hpccomm has no counterpart of.
    """

    line: int
    what: str
    why: str
    unlike: bool = False


LogTable = ImportedRun | LeftOutTable
"""The outcome of a table."""


@dataclass(frozen=True, slots=True)
class LogDefaults:
    """The caller's facts about a log.

    Attributes
    ----------
    name : str
        Of the log, for messages.
    started : datetime
        When the run started, if the log does not say: the time of the file.
    user : str
        Who owns the file.
    collective : str or None
        What was measured, if the log does not say.
    ranks : int or None
        How many ranks there were, if the log does not say.
    """

    name: str
    started: datetime
    user: str
    collective: str | None = None
    ranks: int | None = None


def collective_of(name: str) -> str:
    """Return hpccomm's name of a collective, or of a program that measures one."""
    name = re.split(r"[/\\]", name)[-1].lower()
    # all_reduce_perf_mpi, all_reduce_perf.exe
    name = re.sub(r"_perf(?:_\w+)?(?:\.exe)?$", "", name)
    return NAMES.get(name.replace("_", ""), name)


def unknown_ranks(count: int) -> tuple[RankInfo, ...]:
    """Return a number of ranks without any other facts."""
    return tuple(map(RankInfo, range(count)))


def ranks_of(listed: Sequence[RankInfo], share: int = 1) -> int:
    """Return how many ranks took part in a call, by what a log lists: those of the first one's group.

    Parameters
    ----------
    listed : sequence of RankInfo
        The listed ranks, in their order; of one group some may be missing.
    share : int
        How many ranks each stands for.
    """
    if not listed:
        return 0
    groups = [rank.group for rank in listed]
    if len(set(groups)) > 1:
        return groups.count(groups[0]) * share
    return max(listed[-1].rank + share, len(listed) * share)


def settings_of(rows: Sequence[Row], **known: Any) -> Config:
    """Return the settings of rows, where the log says no more."""
    sizes = [row.bytes for row in rows] or [0]
    unknown = dict.fromkeys(("step_factor", "step_bytes", "iterations", "warmup_iters"), 0)
    sized = {"minimum_bytes": min(sizes), "maximum_bytes": max(sizes)}
    return Config(**{**sized, **unknown, **known})


def status_of(rows: Sequence[Row], wrong: int = 0) -> str:
    """Return how a run ended whose log says how many of its values are `wrong`, or each row does."""
    wrong = wrong or sum(row.wrong for row in rows if row.wrong > 0)
    return f"failed: {wrong} values are out of bounds" if wrong else COMPLETED


def lacking(collective: str | None, ranks: int | None) -> str:
    """Return why a table is left out of which neither the log nor the caller says one of these."""
    wanted = [
        *([] if collective else [("which collective it measured", "--collective NAME")]),
        *([] if ranks else [("how many ranks there were", "--ranks N")]),
    ]
    said, flags = (" and ".join(each) for each in zip(*wanted, strict=True))
    return f"does not say {said}; give {flags}"


SLOW = "failed: the average bus bandwidth is below what was asked for"
"""Status of a run that nccl-tests has found too slow."""


def run_info(
    defaults: LogDefaults,
    config: Config,
    ranks: Sequence[RankInfo],
    versions: dict[str, str],
    arguments: Sequence[str],
    environment: Mapping[str, str] = MappingProxyType({}),
) -> RunInfo:
    """Return the facts of a run, where the log says no more."""
    words, recorded = tuple(arguments), recorded_environment(environment)
    of_run = defaults.started, defaults.user, UNKNOWN_LAUNCHER, words, (), config, tuple(ranks)
    return RunInfo(*of_run, versions, recorded, recorded_slurm(environment))
