"""What ``import hpccomm`` costs beyond ``import numpy``, and a first call beyond mpi4py's import.

Run it as it is::

    python benchmarks/import_time.py

The statements take turns in fresh interpreters; the best of each counts. A figure is the time with
hpccomm over that of ``import numpy`` alone. That of ``first_call`` is milliseconds: for the import, a
communicator of one rank and an all_reduce, after NumPy and ``mpi4py.MPI`` have been imported.
"""

import os
import subprocess
import sys

from contest import program
from contest.promises import Figure

NO_BYTE_CODE = "PYTHONDONTWRITEBYTECODE"

FIRST_CALL = "import hpccomm; comm = hpccomm.new_comm(); comm.all_reduce(numpy.ones(4))"
STATEMENTS = {
    "": ("import numpy",),
    "import": ("import numpy, hpccomm",),
    "new_comm": ("import numpy, hpccomm; hpccomm.new_comm",),
    "first_call": (FIRST_CALL, "import numpy, mpi4py.MPI"),
}
"""By the figure: what is timed in a fresh interpreter, and what is done before. ``new_comm`` loads mpi4py and the rest."""


def seconds(statement: str, before: str = "import time") -> float:
    """Return how long a fresh interpreter takes for `statement`, when it has done what comes before."""
    timed = f"t = time.perf_counter(); {statement}; print(time.perf_counter() - t)"
    # Packages that are installed have their byte code; here the first of the turns leaves it.
    environment = {name: value for name, value in os.environ.items() if name != NO_BYTE_CODE}
    # -P: not this folder's hpccomm, where another is measured.
    command = [sys.executable, "-P", "-c", f"import time; {before}; {timed}"]
    return float(subprocess.check_output(command, text=True, env=environment))


def main() -> None:
    """Measure and print."""
    request = program.arguments(__doc__, "import", {"turns": program.turns(5)})
    names = ("", *request.figures)
    turns = [[seconds(*STATEMENTS[name]) for name in names] for _ in range(request.turns)]
    numpy, *others = (min(column) for column in zip(*turns, strict=True))
    measured = {}
    for name, other in zip(request.figures, others, strict=True):
        says = f"{(other - numpy) * 1e3:.1f} ms beyond NumPy's {numpy * 1e3:.1f} ms"
        measured[name] = Figure(other / numpy, says, other)
        if name == "first_call":
            measured[name] = Figure(other * 1e3, "beyond mpi4py's import", other)
    program.report(request, measured)


if __name__ == "__main__":
    main()
