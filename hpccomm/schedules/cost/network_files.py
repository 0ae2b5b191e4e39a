"""Descriptions of networks as TOML: files, and ready ones by name.

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
"""

import dataclasses
import difflib
import math
import tomllib
from collections.abc import Iterable, Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from hpccomm.errors import ConfigurationError
from hpccomm.schedules.cost.network import Level, Network

_READY = resources.files("hpccomm.schedules.cost") / "networks"
_SUFFIX = ".toml"

MOST = 2**31 - 1
"""The most that an integer of a description can be."""

_LEVELS = ("inner", "across")
_TOP = ("description", "nodes", "ranks_per_node", "reduce", "copy", "overhead", *_LEVELS)
_ACROSS = tuple(field.name for field in dataclasses.fields(Level))
_INNER = tuple(name for name in _ACROSS if name != "total_bandwidth")


def ready() -> tuple[str, ...]:
    """Return the names of the networks that are ready."""
    names = (entry.name for entry in _READY.iterdir())
    return tuple(sorted(name.removesuffix(_SUFFIX) for name in names if name.endswith(_SUFFIX)))


@cache
def typical(name: str = "typical") -> Network:
    """Return the network that `auto` assumes where none is described: a ready one."""
    return load(name)


def load(name: str) -> Network:
    """Return the network of a ready name, or of a TOML file.

    Raises
    ------
    ConfigurationError
        If there is neither, or the file describes no network.
    """
    if name in ready():
        return parse((_READY / f"{name}{_SUFFIX}").read_text(encoding="utf-8"), name, name)
    try:
        text = Path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "not text"
        raise ConfigurationError(
            f"{name!r} is no ready network, and no file that can be read ({why}); "
            f"give one of {', '.join(ready())}, or the path of a TOML file"
        ) from None
    return parse(text, Path(name).name.removesuffix(_SUFFIX), name)


def parse(text: str, name: str, where: str) -> Network:
    """Return the network that a TOML text describes.

    Parameters
    ----------
    text : str
        The description.
    name : str
        Of the network.
    where : str
        What errors call the text.

    Raises
    ------
    ConfigurationError
        If it describes none.
    """
    try:
        table = tomllib.loads(text)
    except ValueError as error:  # an integer of thousands of digits is no TOMLDecodeError
        raise ConfigurationError(f"network {where} is not TOML: {error}") from None
    top = _Table(where, "", table, _TOP)
    nodes = top.integer("nodes", None)
    ranks_per_node = top.integer("ranks_per_node", None)
    description = table.get("description", "")
    if not isinstance(description, str):
        raise top.wrong("description", "a text")
    levels = {
        key: _level(where, key, table, ranks_per_node, needed=several > 1)
        for key, several in zip(_LEVELS, (ranks_per_node, nodes), strict=True)
    }
    return Network(
        name=name,
        ranks=nodes * ranks_per_node,
        ranks_per_node=ranks_per_node,
        reduce=top.speed("reduce", None),
        copy=top.speed("copy", math.inf),
        overhead=top.seconds("overhead", 0.0),
        inner=levels["inner"],
        across=levels["across"],
        description=description,
    )


def dump(network: Network) -> str:
    """Return the TOML text of a network, all nodes of it taken as full."""
    top: dict[str, object] = {
        "description": network.description,
        "nodes": network.nodes,
        "ranks_per_node": network.ranks_per_node,
        "reduce": network.reduce,
        "copy": network.copy,
        "overhead": network.overhead,
    }
    lines = _pairs(top)
    for key, names in zip(_LEVELS, (_INNER, _ACROSS), strict=True):
        level = getattr(network, key)
        if level is not None:
            lines += ["", f"[{key}]", *_pairs({name: getattr(level, name) for name in names})]
    return "".join(f"{line}\n" for line in lines)


def _pairs(values: Mapping[str, object]) -> list[str]:
    return [f"{key} = {_spelled(value)}" for key, value in values.items()]


def _spelled(value: object) -> str:
    if not isinstance(value, str):
        return repr(value)  # numbers, inf among them, are spelled alike in TOML and Python
    escaped = "".join(
        _escaped(letter) if letter in '"\\' or not letter.isprintable() else letter
        for letter in value
    )
    return f'"{escaped}"'


def _escaped(letter: str) -> str:
    # Names of files that are not UTF-8 have lone surrogates, which TOML cannot spell.
    return f"\\U{0xFFFD if 0xD800 <= ord(letter) < 0xE000 else ord(letter):08x}"


def _level(
    where: str, key: str, top: Mapping[str, Any], ranks_per_node: int, *, needed: bool
) -> Level | None:
    if key not in top:
        if needed:
            of = "nodes have several ranks" if key == "inner" else "cluster has several nodes"
            raise ConfigurationError(
                f"network {where}: its {of} and nothing that connects them; add a table [{key}]"
            )
        return None
    if key == "inner" and ranks_per_node == 1:
        raise ConfigurationError(
            f"network {where}: [inner] connects nothing where ranks_per_node is 1; remove it"
        )
    table = _Table(where, f"[{key}] ", top[key], _INNER if key == "inner" else _ACROSS)
    duplex = table.values.get("duplex", "full")
    if duplex not in ("full", "half"):
        raise table.wrong("duplex", '"full" or "half"')
    ports = table.integer("ports", ranks_per_node)
    if ports > ranks_per_node:
        raise table.wrong(
            "ports",
            f"at most ranks_per_node ({ranks_per_node}), as a rank has one; where it has more, "
            "give their bandwidth together",
        )
    return Level(
        latency=table.seconds("latency", None),
        bandwidth=table.speed("bandwidth", None),
        ports=ports,
        duplex=duplex,
        gap=table.seconds("gap", 0.0),
        node_bandwidth=table.speed("node_bandwidth", math.inf),
        total_bandwidth=table.speed("total_bandwidth", math.inf),
    )


class _Table:
    """Reads the values of one table, and knows how to say what is wrong with it."""

    def __init__(self, where: str, prefix: str, values: object, known: Iterable[str]) -> None:
        self._where = where
        self._prefix = prefix
        if not isinstance(values, dict):
            raise ConfigurationError(
                f"network {where}: {prefix.strip(' []')} is {values!r}; make it a table"
            )
        self.values: dict[str, Any] = values
        known = tuple(known)
        for key in values:
            if key not in known:
                near = difflib.get_close_matches(key, known, n=1)
                hint = f"did you mean {near[0]}? " if near else ""
                raise ConfigurationError(
                    f"network {where}: {prefix}{key} is no known key; {hint}"
                    f"There can be {', '.join(known)}"
                )

    def wrong(self, key: str, fits: str) -> ConfigurationError:
        """Return the error for a value that does not fit."""
        given = "is missing"
        if key in self.values:
            value = self.values[key]
            huge = isinstance(value, int) and value.bit_length() > 64
            given = "is a huge integer" if huge else f"is {value!r}"
        return ConfigurationError(
            f"network {self._where}: {self._prefix}{key} {given}; give {fits}"
        )

    def integer(self, key: str, default: int | None) -> int:
        """Read an integer from 1 to `MOST`."""
        value = self.values.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST:
            raise self.wrong(key, f"an integer from 1 to {MOST}")
        return value

    def seconds(self, key: str, default: float | None) -> float:
        """Read a time."""
        value = self._number(key, default)
        if value is None or not 0 <= value < math.inf:
            raise self.wrong(key, "seconds, 0 or more, such as 5e-6")
        return value

    def speed(self, key: str, default: float | None) -> float:
        """Read bytes a second."""
        value = self._number(key, default)
        # The prices multiply by its inverse.
        if value is None or not value > 0 or math.isinf(1 / value):
            raise self.wrong(key, "bytes a second, more than 0, such as 12.5e9")
        return value

    def _number(self, key: str, default: float | None) -> float | None:
        value = self.values.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        try:
            return float(value)
        except OverflowError:
            return None
