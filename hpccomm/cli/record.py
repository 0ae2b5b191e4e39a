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
import shutil
import time
from pathlib import Path

from hpccomm.bench.flag import Flag
from hpccomm.bench.perf import readers
from hpccomm.cli import output
from hpccomm.errors import UsageError

FLAGS = (
    Flag("-o --output FILE", readers.file, "results file to add the recording to", required=True),
    Flag("COMMAND", str, "the program and its arguments, behind --", "command", values="+"),
)


def run(args: argparse.Namespace) -> int:
    """Become the program, which finds in its environment that it is recorded."""
    if output.speaks():
        from hpccomm.communicator.recording import prepare

        prepare(args.output)
        if shutil.which(args.command[0]):
            _watch(args.output.absolute())
    os.environ["HPCCOMM_RECORDING"] = str(args.output.absolute())
    try:
        os.execvp(args.command[0], args.command)
    except (OSError, ValueError) as error:  # it is empty
        why = getattr(error, "strerror", error)
        raise UsageError(
            f"{args.command[0]!r} cannot be started: {why}; give a program behind --, such as "
            "python train.py"
        ) from error


def _watch(file: Path) -> None:
    """Start a process that says at the end of the program if nothing was recorded, as one without hpccomm cannot.

    It is no child of the program, which may wait for all of its children, and no pipe tells it of the end, which other
    processes of the program would hold.
    """
    from hpccomm.results.recording_file import part_path

    def found() -> list[int]:
        return [each.stat().st_mtime_ns for each in (file, part_path(file, 0)) if each.exists()]

    program, before = os.getpid(), found()
    if child := os.fork():
        os.waitpid(child, 0)
        return
    os.setsid()  # what ends the program's process group leaves this one, which ends by itself
    if os.fork():
        os._exit(0)
    while not _ended(program):
        time.sleep(0.1)
    if found() == before:
        output.warn(
            f"hpccomm: nothing was recorded to {file}: a recording begins where the program makes its "
            "first communicator of all ranks (hpccomm.new_comm)\n"
        )
    os._exit(0)


def _ended(process: int) -> bool:
    """Whether a process has ended, also if nobody has asked for its status yet."""
    try:
        return ") Z " in Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return True
