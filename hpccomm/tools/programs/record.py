"""Run a program, and record every call that it makes on communicators, on one clock.

The program needs no change. It is recorded from where it makes its first communicator of all ranks until
that is finalized, or where it uses mpi4py, from where MPI starts. Each rank writes to a file of its own, FILE.rank0 and so on.
A program of hpccomm joins them to FILE at its end. Else all that read FILE join them, and so does the next recording. A
program that is killed loses the last seconds alone.

Record all ranks of a job: they make the start together. Programs that a recorded one starts are not recorded.

At SIGUSR1, to a rank or to mpirun, a program of mpi4py says where each rank is, and which ranks wait for which. With
--timeout it does so when a call waits for longer, and then ends. Calls of hpccomm have --timeout as their deadline.

Examples
--------
  mpiexec -n 4 hpccomm record --output t.h5 -- python train.py --epochs 3
  mpiexec -n 4 hpccomm record --timeout 60 -- python train.py
  hpccomm record --output t.h5 -- python -m package.train
  hpccomm advise t.h5

Exit status: that of the program; 2 if it could not be started, or FILE cannot be written; 3 if --timeout ended it,
or 1 if a call of hpccomm raised CollectiveTimeout then.
"""

import argparse
import os
from pathlib import Path

from hpccomm.errors import UsageError
from hpccomm.tools import flags, output
from hpccomm.tools.flags import Flag

FLAGS = (
    Flag("-o --output FILE", flags.file, "results file to add the recording to"),
    Flag(
        "--timeout SECONDS",
        flags.duration,
        "end the program if a call waits for longer, and say which ranks wait for which",
    ),
    Flag("COMMAND", str, "the program and its arguments, behind --", "command", values="+"),
)


def run(args: argparse.Namespace) -> int:
    """Become the program, which finds in its environment that it is recorded."""
    if args.output is None and args.timeout is None:
        raise UsageError("give --output FILE, --timeout SECONDS, or both")
    if args.output is not None:
        if output.speaks():
            from hpccomm.communicator.recording import prepare

            prepare(args.output)
            output.warn(  # here, as a program without hpccomm cannot say it at its end
                f"hpccomm: recording to {args.output} begins where the program starts MPI with mpi4py, "
                "or makes its first communicator of all ranks (hpccomm.new_comm)\n"
            )
        os.environ["HPCCOMM_RECORDING"] = str(args.output.absolute())
    if args.timeout is not None:
        os.environ["HPCCOMM_RECORD_TIMEOUT"] = str(args.timeout)
        os.environ["HPCCOMM_TIMEOUT"] = str(args.timeout)  # of calls of hpccomm
    site = str(Path(__file__).parent / "ear" / "site")
    paths = [site, *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    try:
        os.execvp(args.command[0], args.command)
    except (OSError, ValueError) as error:  # it is empty
        why = getattr(error, "strerror", error)
        raise UsageError(
            f"{args.command[0]!r} cannot be started: {why}; give a program behind --, such as "
            "python train.py"
        ) from error
