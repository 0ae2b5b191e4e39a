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
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hpccomm.errors import ConfigurationError, UsageError, did_you_mean
from hpccomm.results import expectations
from hpccomm.spelling import rows
from hpccomm.tools import flags as readers
from hpccomm.tools import output
from hpccomm.tools.flags import Flag, FlagGroup, Parser, add_flags
from hpccomm.tools.perf import flags
from hpccomm.tools.perf.pairs import FLAGS as PAIRS

# The text of the script is a pure function of the request. No given value can become a command: words of shell lines
# are quoted, values of ``#SBATCH`` lines are checked, and comments contain only text of this module.
#
# `sbatch` reads the ``#SBATCH`` lines itself, before any shell does: it cuts them at blanks and ``#``, and has quotes and
# backslashes of its own. It takes values without these characters literally.


def _reader(row: Mapping[str, str]) -> Callable[[str], str]:
    """Return a reader of the values that a row's pattern matches; ``fits`` says the same in words."""

    def read(text: str) -> str:
        if re.fullmatch(row["pattern"], text, re.ASCII) is None:
            raise ValueError(f"{text!r} does not fit; give {row['fits']}")
        return text

    return read


READERS = {row["kind"]: _reader(row) for row in rows(__package__, "values.tsv")}
"""Readers of the values of `DIRECTIVES`, by kind: they refuse what `sbatch` would cut, join or unquote.

A job's name becomes part of the name of a file.
"""

_TABLE = readers.table(__package__, READERS)

DIRECTIVES = {each.names[0].removeprefix("--"): each for each in _TABLE["Slurm's flags"]}
"""The flags of `sbatch` that are passed on, by name, in the order of their lines."""


def directive(name: str, value: str) -> str:
    """Return the line of a flag of `DIRECTIVES`; `value` is ignored if the flag takes none.

    Raises
    ------
    UsageError
        If the value does not fit.
    """
    if not DIRECTIVES[name].metavar:
        return f"#SBATCH --{name}"
    try:
        return f"#SBATCH --{name}={DIRECTIVES[name].read(value)}"
    except ValueError as error:
        raise UsageError(f"--{name} {error}") from None


SIGNAL_SECONDS = 60
"""How long before its time limit the job is asked to end. Slurm may do so up to a minute earlier."""

BINDINGS: Mapping[str, tuple[str, str]] = {
    "none": ("none", "none"),
    "cores": ("cores", "core"),
    "sockets": ("sockets", "socket"),
    "numa": ("ldoms", "numa"),
}
"""Bindings of ranks, with their names for ``srun --cpu-bind`` and ``mpiexec --bind-to``."""


@dataclass(frozen=True, slots=True)
class Request:
    """A job that measures.

    Attributes
    ----------
    verb : str
        The verb of hpccomm that the ranks run: ``"perf"`` or ``"perf pairs"``.
    arguments : tuple of str
        Its arguments as given: ``("all_reduce", "-b", "8")``.
    python : str
        Absolute path of the interpreter that hpccomm is installed for.
    directives : mapping of str to str
        Values of `DIRECTIVES` by name. A missing one has its default, if there is one.
    modules : tuple of str
        Software modules to load, in order.
    starter : str
        How the ranks start: by srun with the protocol ``pmix`` or ``pmi2``, or by ``mpiexec``; empty to decide in the job.
    binding : str
        One of `BINDINGS`; empty to leave it to the launcher.
    output : str
        The results file that the arguments name; empty if they name none.
    folder : str
        The folder of the results file otherwise, relative to the folder in which the job is submitted.
    repeats : bool
        Whether the verb starts the ranks itself (``--launches``), and needs their launcher.
    """

    verb: str
    arguments: tuple[str, ...]
    python: str
    directives: Mapping[str, str] = field(default_factory=dict)
    modules: tuple[str, ...] = ()
    starter: str = ""
    binding: str = ""
    output: str = ""
    folder: str = "results"
    repeats: bool = False


def text(request: Request) -> str:
    """Return the script, to be submitted by `sbatch`.

    Parameters
    ----------
    request : Request
        The resources and the command.

    Returns
    -------
    str
        Lines for bash. The exit status of the script is that of the command.

    Raises
    ------
    UsageError
        If a value does not fit.
    """
    if not request.directives.keys() & {"ntasks", "ntasks-per-node"}:
        raise UsageError(
            "the number of ranks is missing; give --ntasks N, or --nodes N --ntasks-per-node N"
        )
    return "\n".join([*_head(request), "", *_environment(request), "", *_run(request), ""])


def _head(request: Request) -> Iterator[str]:
    """Yield the lines that Slurm reads, with comments."""
    yield "#!/bin/bash"
    for name, flag in DIRECTIVES.items():
        value = request.directives.get(name, flag.default)
        if value is not None:
            yield directive(name, value)
    yield "#SBATCH --output=%x-%j.out"
    yield "# If the job is requeued, it adds to the same files."
    yield "#SBATCH --requeue"
    yield "#SBATCH --open-mode=append"
    yield "# Before its time is up, it is asked to end, and closes its table and its results file."
    yield f"#SBATCH --signal=B:TERM@{SIGNAL_SECONDS}"


def _environment(request: Request) -> Iterator[str]:
    """Yield the lines that set up what the command needs."""
    yield "# Written by hpccomm slurm, to be submitted by sbatch."
    yield "set -eo pipefail"
    if request.modules:
        yield "# Before `set -u`: scripts of modules read variables that need not be set."
    for module in request.modules:
        if not module or module.startswith("-"):
            raise UsageError(
                f"--module {module!r} does not fit; give a module's name, such as openmpi/5.0"
            )
        yield f"module load {_quoted(module)}"
    yield "set -u"
    python = Path(request.python)
    yield f"export PATH={_quoted(str(python.parent))}:$PATH"
    yield f"python={_quoted(str(python))}"
    if request.output:
        yield f"results={_quoted(request.output)}"
    else:
        yield f"folder={_quoted(request.folder)}"
        yield "results=$folder/perf-$SLURM_JOB_ID.h5"
        yield 'mkdir -p -- "$folder"'


def _run(request: Request) -> Iterator[str]:
    """Yield the lines that start the ranks."""
    yield _part("launch.sh")
    yield f'choose_launch "$python" mpiexec {request.starter}'.rstrip()
    if request.binding:
        by_srun, by_mpiexec = BINDINGS[request.binding]
        yield "case ${launch[0]} in"
        yield f"srun) launch+=(--cpu-bind={by_srun}) ;;"
        yield f"*) launch+=(--bind-to {by_mpiexec}) ;;"
        yield "esac"
    yield ""
    yield _part("run.sh")
    # Added flags come first: a `--` among the arguments would end the flags.
    words = ['"$python"', "-m", "hpccomm", request.verb]
    if not request.output:
        words.append('--output="$results"')
    if request.repeats:
        words.append('--launcher="${launch[*]}"')
    else:
        words.insert(0, '"${launch[@]}"')
    yield " ".join(['run_in_job "$results"', *words, *map(_quoted, request.arguments)])


def _part(name: str) -> str:
    """Return functions of the shell from a file. The scripts in jobs/ use them too."""
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def _quoted(word: str) -> str:
    """Quote a word for bash, in ASCII: the stream or editor that takes the script may have any encoding.

    Raises
    ------
    UsageError
        If a script cannot contain the word.
    """
    if "\0" in word:
        raise UsageError(f"{word!r} cannot be an argument of a program; leave out the NUL")
    if word.isascii():
        return shlex.quote(word)
    try:
        return "$'" + "".join(map("\\x{:02x}".format, os.fsencode(word))) + "'"
    except UnicodeEncodeError:
        raise UsageError(f"{word!r} cannot be written in a script; give text in UTF-8") from None


_VERBS: Mapping[str, Sequence[Flag | FlagGroup]] = {"perf": flags.ARGUMENTS, "perf pairs": PAIRS}
"""The programs of a script, and their flags."""

_OWN = tuple(FlagGroup(listed, heading) for heading, listed in _TABLE.items())
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
            name: value
            for name, flag in DIRECTIVES.items()
            if (value := getattr(args, flag.takes)) not in (None, False)
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
    """Return the verb's arguments. They are checked as the verb checks them when it starts."""
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
