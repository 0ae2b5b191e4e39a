"""Write a batch script for Slurm that runs perf or perf pairs, on standard output or to a file.

Flags of Slurm may stand before and after the word perf; all others are perf's. They are checked now, not when the
job starts. The script loads modules, starts the ranks by srun or mpiexec, and adds the run to a results file that has
the job's number in its name. A job that is requeued adds to the same file. Shortly before its time is up, it closes
its table and its file. Its exit status is that of perf.

Examples
--------
  hpccomm slurm perf --nodes 4 --ntasks-per-node 8 all_reduce -b 8 -e 1G -f 2 | sbatch
  hpccomm slurm --nodes 2 --ntasks-per-node 8 --gpus-per-node 8 perf all_reduce -b 8 -e 8G -f 2 --backend nccl
  hpccomm slurm perf pairs --nodes 16 --ntasks-per-node 1 --exclusive --script pairs.sbatch
  hpccomm slurm perf --ntasks 64 --module openmpi/5.0 --mpi pmix --cpu-bind cores all --launches 10
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from hpccomm.errors import ConfigurationError, UsageError, did_you_mean
from hpccomm.results import expectations
from hpccomm.tools import flags as readers
from hpccomm.tools import output
from hpccomm.tools.flag import Flag, FlagGroup, add_flags
from hpccomm.tools.flags import Parser
from hpccomm.tools.perf import flags
from hpccomm.tools.perf.pairs.command import FLAGS as PAIRS
from hpccomm.tools.slurm import BINDINGS, DIRECTIVES, STARTERS, Request, text

_VERBS: Mapping[str, Sequence[Flag | FlagGroup]] = {"perf": flags.ARGUMENTS, "perf pairs": PAIRS}
"""The programs of a script, and their flags."""

_SCRIPT = (
    Flag(
        "--module NAME", str, "software module to load; may be given several times", values="append"
    ),
    Flag(
        "--venv DIR",
        readers.file,
        "virtual environment with hpccomm (default: that of this program)",
    ),
    readers.choice(
        "--mpi",
        STARTERS,
        "way to start ranks",
        "start the ranks by srun with this protocol, or by mpiexec (default: in the job, srun if Slurm speaks "
        "the protocol of the MPI library, else mpiexec)",
    ),
    readers.choice(
        "--cpu-bind",
        tuple(BINDINGS),
        "kind of binding",
        "bind each rank to these (default: as srun or mpiexec does)",
    ),
    Flag(
        "--folder DIR results",
        readers.file,
        "folder of the results file, perf-JOBID.h5, unless perf has --output",
    ),
    Flag("--script FILE", readers.file, "write the script to this file"),
)


_OWN = (
    FlagGroup(
        [
            Flag(f"{each.flag} {each.metavar} {each.default or ''}", str, each.meaning)
            for each in DIRECTIVES.values()
        ],
        "Slurm's flags",
    ),
    FlagGroup(_SCRIPT, "the script"),
)
"""The flags of Slurm, and of the script."""

FLAGS = (*_OWN, Flag("perf", str, "the command line of perf or perf pairs", "command", values="*"))


def arranged(words: Sequence[str]) -> list[str]:
    """Put the flags of Slurm before ``--``, and the command line of perf behind it."""
    own = Parser(add_help=False)
    add_flags(own, _OWN)
    before, command = own.separated(words)
    # Before the verb, any flag but Slurm's and --help is wrong.
    at = next((at for at, word in enumerate(command) if not word.startswith("-")), len(command))
    return [*before, *command[:at], "--", *command[at:]]


def run(args: argparse.Namespace) -> int:
    """Write the script."""
    verb, words = _verb(args.command)
    given = _checked(verb, words, args.folder)
    request = Request(
        verb=verb,
        arguments=tuple(words),
        python=_python(args.venv),
        directives={
            name: value if each.values else ""
            for name, each in DIRECTIVES.items()
            if (value := getattr(args, name.replace("-", "_"))) not in (None, False)
        },
        modules=tuple(args.module or ()),
        starter=args.mpi or "",
        binding=args.cpu_bind or "",
        output=str(given.output or ""),
        folder=str(args.folder),
        repeats=bool(getattr(given, "launches", None)),
    )
    output.write_file(args.script, text(request))
    return 0


def _verb(command: Sequence[str]) -> tuple[str, Sequence[str]]:
    """Return the job's program, and its arguments."""
    if not command:
        raise UsageError(
            "what the job runs is missing; give hpccomm slurm [FLAG ...] perf COLLECTIVE [FLAG ...]"
        )
    if command[0] != "perf":
        advice = did_you_mean(command[0], ("perf",), "give perf or perf pairs")
        raise UsageError(f"hpccomm slurm does not run {command[0]!r}; {advice}")
    words = 2 if command[1:2] == ["pairs"] else 1
    return " ".join(command[:words]), command[words:]


def _checked(verb: str, words: Sequence[str], folder: Path) -> argparse.Namespace:
    """Return the verb's arguments, checked as it does when it starts."""
    parser = Parser(prog=f"hpccomm slurm {verb}", text=__doc__)
    # Slurm's flags are for the help, and for the advice on a wrong flag.
    add_flags(parser, (*_OWN, *_VERBS[verb]))
    parser.refuse_unknown_flags(words)
    given, more = parser.parse_known_args(list(words))
    parser.refuse_words(more)
    if verb == "perf":
        if given.launcher:
            raise UsageError(
                "--launcher and hpccomm slurm both say how ranks start; leave it out, and give --mpi if srun or "
                "mpiexec must be named"
            )
        output_too = argparse.Namespace(**vars(given) | {"output": given.output or folder})
        flags.options(output_too)
        if given.expected is not None:
            expectations.check(given.expected)
    return given


def _python(venv: Path | None) -> str:
    """Return the absolute path of the interpreter."""
    if venv is None:
        return sys.executable
    python = venv.absolute() / "bin" / "python"
    if not python.exists():
        raise ConfigurationError(
            f"--venv {venv}: there is no {python}; give the folder of a virtual environment with hpccomm"
        )
    return str(python)
