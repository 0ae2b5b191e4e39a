"""Run a program, and record every call that it makes on communicators, on one clock.

The program needs no change. It is recorded from where it makes its first communicator of all ranks until
that is finalized, and its calls are added to the results file. Until then, each rank writes to a file of its
own beside it, FILE.rank0 and so on. A program that is killed loses the last seconds alone: readers of
FILE join what the ranks have written.

Examples
--------
  mpiexec -n 4 hpccomm record --output t.h5 -- python train.py --epochs 3
  hpccomm record --output t.h5 -- python -m package.train
  hpccomm advise t.h5

Exit status: that of the program; 2 if it could not be started, or FILE cannot be written.
"""

import argparse
import os

from hpccomm.errors import UsageError
from hpccomm.tools import flags, output
from hpccomm.tools.flags import Flag

FLAGS = (
    Flag("-o --output FILE", flags.file, "results file to add the recording to", required=True),
    Flag("COMMAND", str, "the program and its arguments, behind --", "command", values="+"),
)


def run(args: argparse.Namespace) -> int:
    """Become the program, which finds in its environment that it is recorded."""
    if output.speaks():
        from hpccomm.communicator.recording import prepare

        prepare(args.output)
        output.warn(  # here, as a program without hpccomm cannot say it at its end
            f"hpccomm: recording to {args.output} begins where the program makes its first "
            "communicator of all ranks (hpccomm.new_comm)\n"
        )
    os.environ["HPCCOMM_RECORDING"] = str(args.output.absolute())
    try:
        os.execvp(args.command[0], args.command)
    except (OSError, ValueError) as error:  # it is empty
        why = getattr(error, "strerror", error)
        raise UsageError(
            f"{args.command[0]!r} cannot be started: {why}; give a program behind --, such as "
            "python train.py"
        ) from error
