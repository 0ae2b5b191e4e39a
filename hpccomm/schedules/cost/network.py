"""The description of a cluster: costs of messages, folds and copies, and shared links.

A network has up to two levels: `inner` connects the ranks of a node, `across` the nodes. Each level has a
latency, and ports with a bandwidth. There may be fewer ports than ranks on a node; then ranks share ports.
The parameters are those of LogGP, with bandwidth for its G: A. Alexandrov, M. Ionescu, K. Schauser,
C. Scheiman, "LogGP: incorporating long messages into the LogP model", 1995.

The rules of time:

- A message between ranks of one node passes the `inner` ports of the two ranks, one between nodes their `across`
  ports: out of the sender's port, into the receiver's port. It also passes the link that all ports of a node share
  (`node_bandwidth`), out of the sender's node and into the receiver's node, or once inside a node; and the link that
  all nodes share (`total_bandwidth`).
- A message occupies a port for ``gap + bytes / bandwidth`` seconds, and a shared link for ``bytes /
  bandwidth``. Ports and links take messages one at a time: a channel's messages round by round, and a round's
  messages in the order in which their senders were ready. A message that waits at one link does not occupy
  the others.
- Ports are full duplex (messages out of a node and into it are independent) or half duplex (one message at a
  time in either direction). The shared links of a node are of the same kind.
- Once a message has passed all ports and links its sender may go on; the message arrives `latency` seconds later.
- A rank does one fold or copy at a time: a fold of k sources of b bytes takes ``(k - 1) * b / reduce``
  seconds, a copy (or k = 1) ``b / copy``.
- Each call takes `overhead` seconds on every rank before its first message.

`rounds` prices schedules by a network, `terms` estimates by it, and the policy of ``auto`` holds one.

Networks are described in TOML, in files or in ready descriptions that have a name:

::

    description = "..."       # optional
    nodes = 4
    ranks_per_node = 2
    reduce = 5e9              # bytes a second that a rank folds
    copy = 8e9                # optional: bytes a second that a rank copies
    overhead = 0.0            # optional: seconds of each call

    [inner]                   # between ranks of a node; needed if it has several
    latency = 1e-6            # seconds
    bandwidth = 5e9           # bytes a second of a port, in one direction
    ports = 2                 # optional: of a node; one for each rank
    duplex = "full"           # optional: or "half"
    gap = 0.0                 # optional: seconds that a message takes a port for beyond its bytes
    node_bandwidth = inf      # optional: bytes a second of all ports of a node together

    [across]                  # between nodes; needed if there are several
    # the same keys, and:
    total_bandwidth = inf     # optional: bytes a second of all nodes together

The verbs with ``--cluster`` read them, ``hpccomm topo`` and ``simulate`` write them, and ``auto`` reads its assumed
network.
"""

import dataclasses
import json
import math
import re
import reprlib
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

from hpccomm.errors import ConfigurationError, UsageError, did_you_mean
from hpccomm.results.files import read_text
from hpccomm.schedules.schedule import Column
from hpccomm.topology import Topology

Duplex = Literal["full", "half"]


@dataclass(frozen=True, slots=True)
class Level:
    """The connection of the ranks of a node, or of the nodes.

    Attributes
    ----------
    latency : float
        Seconds from the passage of a message's last byte through the ports to its arrival.
    bandwidth : float
        Bytes a second of one port, in one direction.
    ports : int
        Number of ports of a node, from 1 to its ranks. A rank uses port number local rank modulo ports.
    duplex : str
        ``"full"``, or ``"half"``: a port carries one message at a time, in either direction.
    gap : float
        Seconds that a message occupies a port in addition to its bytes.
    node_bandwidth : float
        Bytes a second of all ports of a node together; infinite unless they share something, such
        as memory or an uplink.
    total_bandwidth : float
        Bytes a second of all nodes together, such as a spine's; infinite if they share nothing.
    """

    latency: float
    bandwidth: float
    ports: int
    duplex: Duplex = "full"
    gap: float = 0.0
    node_bandwidth: float = math.inf
    total_bandwidth: float = math.inf


@dataclass(frozen=True, slots=True)
class Network:
    """A cluster. Ranks are numbered node by node; the last node may have fewer.

    Attributes
    ----------
    name : str
        Name of the description's file, without folder and ending.
    ranks, ranks_per_node : int
        Number of ranks in all, and on each node except perhaps the last.
    reduce : float
        Bytes a second that a rank folds into others.
    inner, across : Level or None
        The connections within a node and between nodes; None if there is nothing to connect.
    copy : float
        Bytes a second that a rank copies; infinite if copies take no time.
    overhead : float
        Seconds that each call takes on every rank.
    description : str
        A sentence about the cluster.
    """

    name: str
    ranks: int
    ranks_per_node: int
    reduce: float
    inner: Level | None
    across: Level | None
    copy: float = math.inf
    overhead: float = 0.0
    description: str = ""

    @property
    def nodes(self) -> int:
        """Number of nodes that have ranks."""
        return -(-self.ranks // self.ranks_per_node)

    def node(self, rank: Column) -> Column:
        """Return the node of each of `rank`."""
        return rank // self.ranks_per_node

    def topology(self) -> Topology:
        """Return the topology: which ranks share a node."""
        return Topology(tuple(rank // self.ranks_per_node for rank in range(self.ranks)))

    def placed(self, ranks: int, per_node: int, fallback: "Network") -> "Network":
        """Return a network with the same links for `ranks` ranks, `per_node` on each node.

        All nodes count as full. A level with a port for each rank keeps one for each. A missing level is taken
        from `fallback`.
        """

        def level(own: Level | None, other: Level | None, full: int) -> Level | None:
            chosen, whole = (own, self.ranks_per_node) if own else (other, fallback.ranks_per_node)
            if chosen is None or not full:
                return None
            ports = per_node if chosen.ports == whole > 1 else min(chosen.ports, per_node)
            return dataclasses.replace(chosen, ports=ports)

        return dataclasses.replace(
            self,
            ranks=ranks,
            ranks_per_node=per_node,
            inner=level(self.inner, fallback.inner, per_node > 1),
            across=level(self.across, fallback.across, ranks > per_node),
        )

    def resized(self, ranks: int) -> "Network":
        """Return the same network with another number of ranks, and so of nodes.

        The last node is filled in part if `ranks` is not a multiple of the ranks of a node.

        Raises
        ------
        UsageError
            If the ranks need more than one node, and nothing connects nodes.
        """
        if ranks < 1:
            raise UsageError(f"{self.name} with {ranks} ranks: give at least 1")
        if ranks > self.ranks_per_node and self.across is None:
            raise UsageError(
                f"{self.name} is one node of {self.ranks_per_node} ranks, and {ranks} were asked "
                "for; give fewer, or a network that has [across], which connects nodes"
            )
        return dataclasses.replace(self, ranks=ranks)


_READY = Path(__file__).parent / "networks"
_SUFFIX = ".toml"

MOST = 2**31 - 1
"""Largest value of an integer in a description."""

_LEVELS = ("inner", "across")


class _Kind(NamedTuple):
    """The rule of a value: a test, which may raise `OverflowError`, and its words."""

    fits: Callable[[Any], bool]
    words: str


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


_TEXT = _Kind(lambda value: isinstance(value, str), "a text")
_INTEGER = _Kind(
    lambda value: _is_number(value) and isinstance(value, int) and 1 <= value <= MOST,
    f"an integer from 1 to {MOST}",
)
_SECONDS = _Kind(
    lambda value: _is_number(value) and 0 <= float(value) < math.inf,
    "seconds, 0 or more, such as 5e-6",
)
# The inverse must be finite, since prices multiply by it.
_SPEED = _Kind(
    lambda value: _is_number(value) and float(value) > 0 and not math.isinf(1 / float(value)),
    "bytes a second, more than 0, such as 12.5e9",
)
_TABLE = _Kind(lambda value: isinstance(value, dict), "a table")

_TOP = {
    "description": _TEXT,
    "nodes": _INTEGER,
    "ranks_per_node": _INTEGER,
    "reduce": _SPEED,
    "copy": _SPEED,
    "overhead": _SECONDS,
    **dict.fromkeys(_LEVELS, _TABLE),
}
_INNER = {
    "latency": _SECONDS,
    "bandwidth": _SPEED,
    "ports": _INTEGER,
    "duplex": _Kind(lambda value: value in ("full", "half"), '"full" or "half"'),
    "gap": _SECONDS,
    "node_bandwidth": _SPEED,
}
_ACROSS = {**_INNER, "total_bandwidth": _SPEED}
_NEEDED = ("nodes", "ranks_per_node", "reduce", "latency", "bandwidth")


def ready() -> tuple[str, ...]:
    """Return the names of the ready descriptions."""
    return tuple(sorted(path.stem for path in _READY.glob(f"*{_SUFFIX}")))


@cache
def typical(name: str = "typical") -> Network:
    """Return a ready network; by default the one that `auto` assumes if no network is described."""
    return load(name)


def load(name: str) -> Network:
    """Return the network of a ready name, or of a TOML file.

    Raises
    ------
    ConfigurationError
        If the file or name does not exist, or the file does not describe a network.
    """
    if name in ready():
        return parse((_READY / f"{name}{_SUFFIX}").read_text(encoding="utf-8"), name, name)
    try:
        text = read_text(name)
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "not text"
        advice = f"give one of {', '.join(ready())}, or the path of a TOML file"
        raise ConfigurationError(
            f"{name!r} is not a ready network, and not a readable file ({why}); "
            f"{did_you_mean(name, ready(), advice)}"
        ) from None
    return parse(text, Path(name).name.removesuffix(_SUFFIX), name)


def parse(text: str, name: str, where: str) -> Network:
    """Return the network that a TOML text describes.

    Parameters
    ----------
    text : str
        The description.
    name : str
        Name of the network.
    where : str
        Name of the text in errors.

    Raises
    ------
    ConfigurationError
        If the text does not describe a network.
    """
    try:
        table = tomllib.loads(text)
    except ValueError as error:  # also for an integer of thousands of digits
        raise ConfigurationError(f"network {where} is not TOML: {error}") from None
    except RecursionError:
        raise ConfigurationError(
            f"network {where} has tables or arrays nested hundreds deep; a description has two levels"
        ) from None
    top = _checked(where, "", table, _TOP)
    nodes, ranks_per_node = top.pop("nodes"), top["ranks_per_node"]
    for key, several in zip(_LEVELS, (ranks_per_node, nodes), strict=True):
        top[key] = _level(where, key, top.get(key), ranks_per_node, needed=several > 1)
    return Network(name=name, ranks=nodes * ranks_per_node, **top)


def dump(network: Network) -> str:
    """Return the TOML text of a network. All nodes count as full."""
    lines = _pairs(network, (key for key in _TOP if key not in _LEVELS))
    for key, names in zip(_LEVELS, (_INNER, _ACROSS), strict=True):
        level = getattr(network, key)
        if level is not None:
            lines += ["", f"[{key}]", *_pairs(level, names)]
    return "".join(f"{line}\n" for line in lines)


def _pairs(described: Network | Level, keys: Iterable[str]) -> list[str]:
    return [f"{key} = {_spelled(getattr(described, key))}" for key in keys]


def _spelled(value: object) -> str:
    if not isinstance(value, str):
        return repr(value)  # TOML and Python write numbers, also inf, in the same way
    # Names of files that are not UTF-8 have lone surrogates, which TOML cannot write. Otherwise TOML's
    # strings are JSON's, except that TOML escapes DEL too.
    text = re.sub("[\ud800-\udfff]", "\ufffd", value)
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _level(
    where: str, key: str, table: Mapping[str, Any] | None, ranks_per_node: int, *, needed: bool
) -> Level | None:
    if table is None:
        if needed:
            of = "nodes have several ranks" if key == "inner" else "cluster has several nodes"
            raise _refused(where, f"its {of} and nothing that connects them; add a table [{key}]")
        return None
    if key == "inner" and ranks_per_node == 1:
        raise _refused(where, "[inner] connects nothing where ranks_per_node is 1; remove it")
    prefix = f"[{key}] "
    values = _checked(where, prefix, table, _INNER if key == "inner" else _ACROSS)
    if values.setdefault("ports", ranks_per_node) > ranks_per_node:
        fits = (
            f"at most ranks_per_node ({ranks_per_node}), as a rank has one; where it has more, "
            "give their bandwidth together"
        )
        raise _wrong(where, prefix, "ports", values, fits)
    return Level(**values)


def _checked(
    where: str, prefix: str, table: Mapping[str, Any], kinds: Mapping[str, _Kind]
) -> dict[str, Any]:
    """Return the values of a table, times and speeds as floats, after a check of each.

    Raises
    ------
    ConfigurationError
        If a key is not in `kinds`, a needed key is missing, or a value does not fit.
    """
    for key in table:
        if key not in kinds:
            advice = did_you_mean(key, kinds, f"there can be {', '.join(kinds)}")
            raise _refused(where, f"{prefix}{key} is not a known key; {advice}")
    values = dict(table)
    for key, kind in kinds.items():
        if key not in table and key not in _NEEDED:
            continue
        try:
            fits = key in table and kind.fits(table[key])
        except OverflowError:  # an integer beyond all floats
            fits = False
        if not fits and kind is _TABLE:
            raise _refused(where, f"{key} is {_short(table[key])}; make it a table")
        if not fits:
            raise _wrong(where, prefix, key, table, kind.words)
        if kind in (_SECONDS, _SPEED):
            values[key] = float(table[key])
    return values


def _wrong(
    where: str, prefix: str, key: str, values: Mapping[str, Any], fits: str
) -> ConfigurationError:
    """Return the error for a value that does not fit."""
    problem = "is missing"
    if key in values:
        value = values[key]
        huge = isinstance(value, int) and value.bit_length() > 64
        problem = "is a huge integer" if huge else f"is {_short(value)}"
    return _refused(where, f"{prefix}{key} {problem}; give {fits}")


def _refused(where: str, problem: str) -> ConfigurationError:
    return ConfigurationError(f"network {where}: {problem}")


def _short(value: object) -> str:
    """Return a value for an error message, shortened if it has many levels or letters."""
    shown = reprlib.Repr()
    shown.maxstring = 60
    return shown.repr(value)
