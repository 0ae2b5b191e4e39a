"""Why a program has ended, as its log says."""

import re
from collections.abc import Iterable

from hpccomm.bench.logs.lines import LogLine

_FAILURES = re.compile(
    r"Test (?:CUDA|HIP|NCCL|CURAND) failure .*|Test timeout .*|(?:NCCL|CUDA|HIP|CuRAND) (?:failure|error) .*"
    r"|DATA VALIDATION ERROR.*|Invalid number of GPUs.*|Segmentation fault.*|[Oo]ut of [Mm]emory.*"
)
_ENDS = re.compile(
    r"[^#]*(?:exited on signal|exited with (?:status|exit code|code) [1-9]|\bCANCELLED\b|oom-kill|Killed$).*"
    r"|Test failure .*|(?:srun|slurmstepd|prterun|mpirun): error: .*"
)
_WARNING = re.compile(r"NCCL WARN .*")
_MOST = 200


def cause(lines: Iterable[LogLine]) -> str:
    """Return the line that says why a program ended; empty if there is none.

    A failed call says more than the program's end, and both say more than a warning.
    """
    kinds = (_FAILURES, _ENDS, _WARNING)
    found = [""] * len(kinds)
    for line in lines:
        for place, kind in enumerate(kinds):
            if not found[place] and (match := kind.search(line.text)):
                found[place] = match[0].strip()[:_MOST]
    return next(filter(None, found), "")
