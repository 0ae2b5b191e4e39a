"""The text of a batch script: a pure function of the request.

No given value can become a command. Words of shell lines are quoted, values of ``#SBATCH`` lines
are checked by `directives`, and comments contain only text of this module. `hpccomm.cli.slurm`
prints it.
"""

import os
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hpccomm.errors import UsageError
from hpccomm.slurm.directives import DIRECTIVES

SIGNAL_SECONDS = 60
"""How long before its time limit the job is asked to end. Slurm may do so up to a minute earlier."""

STARTERS = ("pmix", "pmi2", "mpiexec")
"""Ways to start the ranks: srun by one of two protocols, or the MPI library's launcher."""

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
        Its arguments, as they were given: ``("all_reduce", "-b", "8")``.
    python : str
        Absolute path of the interpreter that hpccomm is installed for.
    directives : mapping of str to str
        Values of `DIRECTIVES` by name; missing ones with a default get it.
    modules : tuple of str
        Software modules to load, in order.
    starter : str
        One of `STARTERS`; empty to decide in the job.
    binding : str
        One of `BINDINGS`; empty to leave it to the launcher.
    output : str
        The results file that the arguments name; empty if they name none.
    folder : str
        Where the results file goes otherwise, seen from the folder that the job is submitted in.
    repeats : bool
        Whether the verb starts the ranks itself (``--launches``), and needs their launcher.

    Raises
    ------
    UsageError
        If a value does not fit.
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

    def __post_init__(self) -> None:
        for word in (*self.arguments, self.python, *self.modules, self.output, self.folder):
            _check_word(word)
        for module in self.modules:
            if not module or module.startswith("-"):
                raise UsageError(
                    f"--module {module!r} does not fit; give a module's name, such as openmpi/5.0"
                )
        for name, value in self.directives.items():
            DIRECTIVES[name].line(value)
        if not self.directives.keys() & {"ntasks", "ntasks-per-node"}:
            raise UsageError(
                "the number of ranks is missing; give --ntasks N, or --nodes N --ntasks-per-node N"
            )


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
    """
    return "\n".join([*_head(request), "", *_environment(request), "", *_run(request), ""])


def _head(request: Request) -> Iterator[str]:
    """Yield the lines that Slurm reads, with comments."""
    yield "#!/bin/bash"
    for name, directive in DIRECTIVES.items():
        value = request.directives.get(name, directive.default)
        if value is not None:
            yield directive.line(value)
    yield "#SBATCH --output=%x-%j.out"
    yield "# If the job is requeued, it adds to the same files."
    yield "#SBATCH --requeue"
    yield "#SBATCH --open-mode=append"
    yield "# Before its time is up, it is asked to end, and closes its table and its results file."
    yield f"#SBATCH --signal=B:TERM@{SIGNAL_SECONDS}"


def _environment(request: Request) -> Iterator[str]:
    """Give the lines that set up what the command needs."""
    yield "# Written by hpccomm slurm, to be submitted by sbatch."
    yield "set -eo pipefail"
    if request.modules:
        yield "# Before `set -u`: scripts of modules read variables that need not be set."
        yield from (f"module load {_quoted(module)}" for module in request.modules)
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
    """Give the lines that start the ranks."""
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
    """Return functions of the shell, which the scripts in jobs/ use too."""
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def _check_word(word: str) -> None:
    """Raise if a script cannot contain a word."""
    try:
        os.fsencode(word)
    except UnicodeEncodeError:
        raise UsageError(f"{word!r} cannot be written in a script; give text in UTF-8") from None
    if "\0" in word:
        raise UsageError(f"{word!r} cannot be an argument of a program; leave out the NUL")


def _quoted(word: str) -> str:
    """Quote a word for bash, in ASCII: what takes the script, a stream or an editor, may have any encoding."""
    if word.isascii():
        return shlex.quote(word)
    return "$'" + "".join(map("\\x{:02x}".format, os.fsencode(word))) + "'"
