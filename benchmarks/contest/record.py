"""A run in a results file, which ``hpccomm show`` prints: a table for each collective and contender."""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from contest.contenders import COPY, Contender
from contest.results import Line, Result
from hpccomm.results.schema import Config, Row
from hpccomm.tools.perf.patterns import NO_OP

if TYPE_CHECKING:
    from hpccomm.results.writer import Writer

SLOWEST_RANK = 3
"""Of `Config.average`: a time is that of the slowest rank."""


def config(sizes: Sequence[int], rounds: int) -> Config:
    """Return the settings of a run by the names of a results file: iterations are rounds."""
    return Config(min(sizes), max(sizes), 0, 0, rounds, 1, average=SLOWEST_RANK)


def write(writer: "Writer", lines: Sequence[Line], contenders: Sequence[Contender]) -> None:
    """Add the lines of one collective."""
    for one in contenders:
        for line in lines:
            result = line.results.get(one.name)
            if result is not None:
                writer.append(row(line, result), result.times.samples)


def row(line: Line, result: Result) -> Row:
    """Return the row of one contender on one line."""
    contender, seconds = result.contender, result.times.seconds
    algbw = line.nbytes / 1e9 / seconds
    return Row(
        collective=line.collective,
        backend=contender.backend,
        algorithm=contender.algorithm,
        dtype="float",
        op="sum" if line.reduces else NO_OP,
        root=line.root,
        bytes=line.nbytes,
        count=line.count,
        in_place=line.in_place,
        time=seconds * 1e6,
        algbw=algbw,
        busbw=algbw if contender.name == COPY else algbw * line.factor,
        wrong=result.wrong,
        iterations=len(result.times.rounds),
        finished=time.time(),
    )
