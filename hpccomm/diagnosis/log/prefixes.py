"""The origin of a log's line: rank and host, from the prefixes of launchers and libraries.

`reading` asks it for each line with a known word.
"""

import re
from typing import NamedTuple

_DAY = r"(?:\w{3} )?\w{3} [ \d]\d \d\d:\d\d:\d\d(?: \d{4})?"
_ISO = r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?"

_FORMS = (
    rf"\[?(?P<time>{_ISO})\]? ?(?:std(?:out|err) [FP] )?",  # kubectl, CRI, NCCL
    rf"\[(?P<day>{_DAY})\]",  # mpiexec --output timestamp
    # mpiexec --tag-output; --output of Open MPI 5: tag, tag-detailed, tag-fullname, rank
    r"\[(?:[^\[\]@]*@)?(?:\d+,)?(?P<tag>\d{1,9})\](?:\[(?P<taghost>[\w.-]+):\d+\])?<std(?:out|err|diag)>:? ?",
    r"(?:<std(?:out|err|diag)>:? ?)",
    r"\[(?:rank|default)?(?P<torch>\d{1,9})\]:? ?",  # torchrun, MPICH's -l
    r"\s{0,6}(?P<srun>\d{1,6})(?:@(?P<at>[\w.-]+))?: ",  # srun -l, -prepend-pattern of MPICH
    r"\[?pod/(?P<pod>[\w.-]+)(?:/[\w.-]+)?\]? ",  # kubectl --prefix
    rf"{_DAY} (?P<syslog>[\w.-]+) kernel: ",
    r"\[ *\d+\.\d+\] ?",  # since the system began
    r"\[(?P<ompi>[\w.-]+):(?P<opid>\d+)(?::\d+)*\] ",  # Open MPI, UCX
    r"(?P<nccl>[\w.-]+):(?P<pid>\d+):\d+ (?:\[-?\d+\] )?",
    r'\{"(?:log|msg|message)":\s*"',  # a line in JSON
)
_PREFIX = re.compile("|".join(f"(?:{form})" for form in _FORMS))
_RANK, _HOST = ("tag", "torch", "srun"), ("taghost", "at", "pod", "syslog", "ompi", "nccl")


class LineOrigin(NamedTuple):
    """Where a line comes from.

    Attributes
    ----------
    tag : str
        What tells whose it is, the same for all lines of a rank; empty if nothing does.
    rank : int or None
    host : str
        Empty if it is not said.
    process : str
        ``host:pid``, if a library says it.
    time : str
        As it stands there; it sorts within a host.
    """

    tag: str = ""
    rank: int | None = None
    host: str = ""
    process: str = ""
    time: str = ""


def split(line: str) -> tuple[LineOrigin, str]:
    """Return the origin of a line, and its text without prefixes."""
    tag, facts = "", dict[str, str]()
    while (prefix := _PREFIX.match(line)) and prefix.end():
        named = {name: value for name, value in prefix.groupdict().items() if value is not None}
        if named.keys() & {"tag", "torch", "srun", "pod"}:
            tag += prefix[0]
        facts = named | facts
        line = line[prefix.end() :]
    ranks = [int(facts[name]) for name in _RANK if name in facts]
    host = next((facts[name] for name in _HOST if name in facts), "")
    pid = facts.get("pid") or facts.get("opid")
    process = f"{host}:{pid}" if pid else ""
    return LineOrigin(tag, ranks[0] if ranks else None, host, process, facts.get("time", "")), line
