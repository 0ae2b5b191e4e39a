"""The flags of `sbatch` that a batch script may use, and the values that fit them.

`hpccomm.cli.slurm` parses them, and `hpccomm.slurm.script` writes them.

`sbatch` reads the ``#SBATCH`` lines itself, before any shell does: it cuts them at blanks and
``#``, and has quotes and backslashes of its own. It takes values without these characters
literally.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

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
