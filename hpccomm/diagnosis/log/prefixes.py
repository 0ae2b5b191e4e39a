"""The origin of a log's line: rank and host, from the prefixes of launchers and libraries.

`reading` asks it for each line with a known word.
"""

import re
from typing import NamedTuple

from hpccomm.diagnosis.meanings import rows

_PREFIX = re.compile("|".join(f"(?:{row['regex']})" for row in rows("prefixes.tsv")))
_RANK = ("tag", "torch", "srun", "sky", "role")
_HOST = ("taghost", "at", "pod", "syslog", "ompi", "nccl", "ip")


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
        if named.keys() & {"tag", "torch", "srun", "pod", "role", "actor"}:
            tag += prefix[0]
        facts = named | facts
        line = line[prefix.end() :]
    ranks = [int(facts[name]) for name in _RANK if name in facts]
    host = next((facts[name] for name in _HOST if name in facts), "")
    pid = facts.get("pid") or facts.get("opid")
    process = f"{host}:{pid}" if pid else ""
    return LineOrigin(tag, ranks[0] if ranks else None, host, process, facts.get("time", "")), line
