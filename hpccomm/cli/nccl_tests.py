"""In place of nccl-tests' programs: ``all_reduce_perf -b 8 -e 1G -f 2 -g 1``, by ``hpccomm perf``.

``hpccomm perf --links DIR`` makes small programs of their names, which call this module. What reads
nccl-tests' table, JSON and exit status reads theirs.
"""

import argparse
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from hpccomm.backends.bootstrap.launch import launched
from hpccomm.bench.perf.programs import PROGRAMS, RUN_BY
from hpccomm.errors import BackendUnavailable, UsageError

MINIMUM = "NCCL_TESTS_MIN_BW"
"""nccl-tests' variable: the least average bus bandwidth, in 1e9 B/s."""


def main(words: Sequence[str] | None = None) -> int:
    """Do what a program of nccl-tests does; return the exit status.

    Parameters
    ----------
    words : sequence of str, optional
        Name of the program and its arguments; by default those of this process.
    """
    from hpccomm.cli.main import fail, main

    name, *rest = sys.argv[1:] if words is None else words
    try:
        ranks, rest = _ranks(rest)
        place = launched()
        if ranks > 1:
            if place is not None:
                raise UsageError(
                    f"{name}: -t times -g is {ranks} below {place.launcher}, and a rank is a process here; start "
                    f"{ranks} times as many ranks and leave -t and -g out"
                )
            command = launch_command(ranks, os.environ)
            os.execvp(command[0], [*command, sys.executable, "-m", RUN_BY, name, *rest])
    except (BackendUnavailable, UsageError) as error:
        return fail(error, collective=True)
    return main(["perf", PROGRAMS[name], *rest, *_minimum(os.environ)])


def _ranks(words: Sequence[str]) -> tuple[int, list[str]]:
    """Return threads times devices of a process, as nccl-tests has its ranks, and the other arguments."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("-t", "--nthreads", type=int, default=1)
    parser.add_argument("-g", "--ngpus", type=int, default=1)
    try:
        known, rest = parser.parse_known_args(words)
    except argparse.ArgumentError as error:
        raise UsageError(f"{error}; give a number") from None
    if min(known.nthreads, known.ngpus) < 1:
        raise UsageError(
            f"-t/--nthreads {known.nthreads} and -g/--ngpus {known.ngpus}: give 1 or more"
        )
    return known.nthreads * known.ngpus, rest


def launch_command(ranks: int, environ: Mapping[str, str]) -> list[str]:
    """Return what starts so many ranks on this node: the launcher beside this Python, or on the path.

    Raises
    ------
    BackendUnavailable
        If there is none.
    """
    beside = Path(sys.executable).with_name("mpiexec")
    found = str(beside) if beside.exists() else shutil.which("mpiexec", path=environ.get("PATH"))
    if found is None:
        raise BackendUnavailable(
            f"-g and -t ask for {ranks} ranks, and no mpiexec is there to start them; install an MPI library, or "
            "start the ranks with its launcher"
        )
    return [found, "-n", str(ranks)]


def _minimum(environ: Mapping[str, str]) -> list[str]:
    """Return the flag for the least bandwidth that nccl-tests' variable asks for."""
    return ["--min-bw", environ[MINIMUM]] if environ.get(MINIMUM) else []


if __name__ == "__main__":
    sys.exit(main())
