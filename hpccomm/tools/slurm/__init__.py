"""The text of a batch script: a pure function of the request. `hpccomm.tools.slurm.command` prints it.

No given value can become a command. Words of shell lines are quoted, values of ``#SBATCH`` lines
are checked, and comments contain only text of this module.

`sbatch` reads the ``#SBATCH`` lines itself, before any shell does: it cuts them at blanks and
``#``, and has quotes and backslashes of its own. It takes values without these characters
literally.
"""

import os
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hpccomm.errors import UsageError


@dataclass(frozen=True, slots=True)
class Syntax:
    """Values that fit a directive.

    Attributes
    ----------
    pattern : str
        A regular expression for the whole value.
    fits : str
        The same in words, for errors.
    """

    pattern: str
    fits: str


@dataclass(frozen=True, slots=True)
class Directive:
    """A flag of `sbatch` that is passed on.

    Attributes
    ----------
    name : str
        Its name with `sbatch`, and with ``hpccomm slurm``.
    metavar : str
        Form of the value; empty without a value.
    values : Syntax or None
        The permitted ones; None for a flag without a value.
    meaning : str
        A phrase for the help.
    default : str or None
        The value without the flag.
    """

    name: str
    metavar: str
    values: Syntax | None
    meaning: str
    default: str | None = None

    @property
    def flag(self) -> str:
        """The name with its dashes."""
        return f"--{self.name}"

    def line(self, value: str) -> str:
        """Return the line of a batch script; `value` is ignored if the directive takes none.

        Raises
        ------
        UsageError
            If the value does not fit.
        """
        if self.values is None:
            return f"#SBATCH {self.flag}"
        if re.fullmatch(self.values.pattern, value, re.ASCII) is None:
            raise UsageError(f"{self.flag} {value!r} does not fit; give {self.values.fits}")
        return f"#SBATCH {self.flag}={value}"


_COUNT = Syntax(r"[1-9][0-9]{0,8}", "a whole number of 1 or more")
_NODES = Syntax(r"[1-9][0-9]{0,8}(-[1-9][0-9]{0,8})?", "a number of nodes, such as 4, or 2-4")
_GPUS = Syntax(r"([A-Za-z0-9_.-]+:)?[0-9]{1,9}", "a number, or a type and a number, such as a100:4")
_TIME = Syntax(
    r"[0-9]{1,6}(:[0-5]?[0-9]){0,2}|[0-9]{1,4}-[0-9]{1,2}(:[0-5]?[0-9]){0,2}",
    "minutes, HOURS:MINUTES:SECONDS or DAYS-HOURS, such as 30, 00:30:00 or 1-0",
)
_NAME = Syntax(
    r"[A-Za-z0-9_.+@:/,-]+", "a name of letters, digits and _ . + - @ : / , without blanks"
)
# It becomes part of the name of a file.
_JOB = Syntax(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*", "a name of letters, digits and _ . + -")
_FEATURES = Syntax(
    r"[A-Za-z0-9_.+=:,&|*()\[\]!-]+", "features joined as sbatch does, such as intel&ib or [a|b]"
)
_HOSTS = Syntax(r"[A-Za-z0-9_.,\[\]-]+", "names of nodes, such as n1,n7 or n[1-4,7]")

DIRECTIVES: Mapping[str, Directive] = {
    directive.name: directive
    for directive in (
        Directive("nodes", "N", _NODES, "number of nodes"),
        Directive("ntasks-per-node", "N", _COUNT, "ranks on each node"),
        Directive("ntasks", "N", _COUNT, "ranks in all"),
        Directive("cpus-per-task", "N", _COUNT, "cores of each rank"),
        Directive("gpus-per-node", "[TYPE:]N", _GPUS, "GPUs of each node"),
        Directive("partition", "NAME", _NAME, "partition"),
        Directive("account", "NAME", _NAME, "account that is charged"),
        Directive("qos", "NAME", _NAME, "quality of service"),
        Directive("constraint", "FEATURES", _FEATURES, "features of the nodes"),
        Directive("reservation", "NAME", _NAME, "reservation"),
        Directive("nodelist", "NODES", _HOSTS, "nodes that must be part of the job"),
        Directive("exclude", "NODES", _HOSTS, "nodes that are not"),
        Directive("time", "TIME", _TIME, "time limit", "00:30:00"),
        Directive("exclusive", "", None, "share the nodes with no other job"),
        Directive("job-name", "NAME", _JOB, "name of the job", "hpccomm-perf"),
    )
}
"""The directives by name, in the order of their lines."""


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
