"""What ``import hpccomm`` costs beyond ``import numpy``, and a first call beyond mpi4py's import.

Run it as it is::

    python benchmarks/import_time.py

The statements take turns in fresh interpreters; the best of each counts. A figure is the time with
hpccomm over that of ``import numpy`` alone. That of ``first_call`` is milliseconds: for the import, a
communicator of one rank and an all_reduce, after NumPy and ``mpi4py.MPI`` have been imported.
"""

import argparse
import os
import subprocess
import sys
from functools import partial

from contest import figures
from contest.figures import Figure

NO_BYTE_CODE = "PYTHONDONTWRITEBYTECODE"

STATEMENTS = {
    "import": "import numpy, hpccomm",
    "new_comm": "import numpy, hpccomm; hpccomm.new_comm",
}
"""By the figure: what a fresh interpreter does. Looking ``new_comm`` up loads mpi4py and the rest."""

MPI = "import numpy, mpi4py.MPI"
FIRST_CALL = "import hpccomm; comm = hpccomm.new_comm(); comm.all_reduce(numpy.ones(4))"


def seconds(statement: str, before: str = "import time") -> float:
    """Return how long a fresh interpreter takes for `statement`, when it has done what comes before."""
    timed = f"t = time.perf_counter(); {statement}; print(time.perf_counter() - t)"
    program = f"import time; {before}; {timed}"
    # Packages that are installed have their byte code; here the first of the turns leaves it.
    environment = {name: value for name, value in os.environ.items() if name != NO_BYTE_CODE}
    done = subprocess.run(
        [
            sys.executable,
            "-P",
            "-c",
            program,
        ],  # not this folder's hpccomm, where another is measured
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    )
    return float(done.stdout)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    figures.add_arguments(parser, "import")
    parser.add_argument("--turns", type=int, default=5)
    request = parser.parse_args()
    run = {name: partial(seconds, each) for name, each in STATEMENTS.items()}
    run |= {"first_call": partial(seconds, FIRST_CALL, MPI), "": partial(seconds, "import numpy")}
    turns = [[run[name]() for name in ("", *request.figures)] for _ in range(request.turns)]
    numpy, *others = (min(column) for column in zip(*turns, strict=True))
    measured = {
        name: Figure(other * 1e3, "beyond mpi4py's import", other)
        if name == "first_call"
        else Figure(
            other / numpy,
            f"{(other - numpy) * 1e3:.1f} ms beyond NumPy's {numpy * 1e3:.1f} ms",
            other,
        )
        for name, other in zip(request.figures, others, strict=True)
    }
    figures.show(measured, request.json)


if __name__ == "__main__":
    main()
