"""The reason why a program ended, from its log. The readers of tables store it with the run."""

import re
from collections.abc import Sequence

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
