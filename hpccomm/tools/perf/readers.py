"""Readers of flags' values: from text to value, or an error that says what fits.

The flags of all verbs read their values by these functions.
"""

import math
import re
import shlex
from argparse import ArgumentTypeError
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from hpccomm.errors import did_you_mean
from hpccomm.schedules.algorithms import registered
from hpccomm.tools.flag import Flag
from hpccomm.units import seconds, size

T = TypeVar("T")

ALL = "all"
ALL_ROOTS = -1

_INTEGER = re.compile(r"[+-]?(?:0x[0-9a-f]+|\d+)", re.IGNORECASE | re.ASCII)


def segment(text: str) -> int:
    """Read the size of a segment, which must move something."""
    nbytes = size(text)
    if nbytes < 1:
        raise ArgumentTypeError(f"{text!r}: nothing would move; give 1 byte or more")
    return nbytes


def segments(text: str) -> tuple[int, ...]:
    """Read such sizes with commas between them."""
    return tuple(map(segment, listed(text)))


def integer(low: int, high: int | None = None) -> Callable[[str], int]:
    """Return a reader of integers from `low` to `high`."""
    fits = f"an integer from {low} " + ("up" if high is None else f"to {high}")

    def read(text: str) -> int:
        try:
            value = int(text, 0) if _INTEGER.fullmatch(text) else None
        except ValueError:  # 010, which is 8 to nccl-tests, or thousands of digits
            value = None
        if value is None:
            raise ArgumentTypeError(f"{text!r} is not an integer; give {fits}")
        if value < low or (high is not None and value > high):
            raise ArgumentTypeError(f"{value} is out of range; give {fits}")
        return value

    return read


def switch(text: str) -> bool:
    """Read 0 or 1."""
    return bool(integer(0, 1)(text))


def only(neutral: int, why: str) -> Callable[[str], int]:
    """Return a reader for a flag that has no effect here; it accepts only `neutral`."""

    def read(text: str) -> int:
        if text != str(int(neutral)):
            raise ArgumentTypeError(
                f"{text!r} is not possible: {why}; give {int(neutral)} or leave it out"
            )
        return neutral

    return read


def _known(text: str, names: Collection[str], refusal: str, how: str) -> str:
    """Return `text` if it is one of `names`; `refusal` says why another is refused."""
    if text not in names:
        advice = did_you_mean(text, names, f"give {how} {', '.join(names)}")
        raise ArgumentTypeError(f"{text!r} {refusal}; {advice}")
    return text


def one_of(names: Sequence[str], what: str) -> Callable[[str], str]:
    """Return a reader of one of some names."""
    return lambda text: _known(text, names, f"is not a {what}", "one of")


def choice(
    name: str,
    names: Sequence[str],
    what: str,
    meaning: str,
    default: str = "",
    *,
    required: bool = False,
) -> Flag:
    """Return a flag that takes one of some names."""
    usage = f"{name} {{{','.join(names)}}} {default}"
    return Flag(usage, one_of(names, what), meaning, required=required)


def root(text: str) -> int:
    """Read a rank, or ``all``, which is -1 to nccl-tests."""
    return ALL_ROOTS if text in (ALL, str(ALL_ROOTS)) else integer(0)(text)


def percentage(text: str) -> float:
    """Read a percentage, with or without its sign; return the part of the whole."""
    value = _number(text.strip().removesuffix("%"))
    if not 0 < value <= 100:
        fits = "a number above 0 and at most 100, such as 2%"
        raise ArgumentTypeError(f"{text!r} is not a percentage; give {fits}")
    return value / 100


def duration(text: str) -> float:
    """Read a time that is not 0."""
    if not (value := seconds(text)) > 0:
        raise ArgumentTypeError(f"{text!r} is not a time; give more than 0, such as 60s")
    return value


def bandwidth(text: str) -> float:
    """Read a bandwidth in 1e9 B/s."""
    if not 0 <= (value := _number(text)) < math.inf:
        raise ArgumentTypeError(f"{text!r} is not a bandwidth; give GB/s, such as 370")
    return value


def _number(text: str) -> float:
    """Return a number; NaN for any other text."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def command(text: str) -> tuple[str, ...]:
    """Read a command in words, quoted as for a shell."""
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        raise ArgumentTypeError(f"{text!r} is not a command: {error}") from None
    if not words:
        raise ArgumentTypeError("an empty command; give one such as 'mpiexec -n 4'")
    return words


def series(text: str) -> dict[str, str]:
    """Read the name of a series, the number of a launch in it, and how many there are."""
    match = re.fullmatch(r"(.+):(\d+):(\d+)", text)
    if match is None or not 1 <= int(match[2]) <= int(match[3]):
        raise ArgumentTypeError(
            f"{text!r} is not a launch of a series; give NAME:LAUNCH:LAUNCHES such as nightly:3:10"
        )
    return {"name": match[1], "launch": match[2], "launches": match[3]}


def named(text: str) -> str:
    """Read a name."""
    if not text:
        raise ArgumentTypeError("an empty name; give one")
    return text


def file(text: str) -> Path:
    """Read the name of a file."""
    if not text:
        raise ArgumentTypeError("an empty name; give that of a file")
    return Path(text)


def json_file(text: str) -> Path:
    """Read the name of a file of JSON."""
    if not text.lower().endswith(".json"):
        fits = "JSON is what can be written: give a name ending in .json"
        raise ArgumentTypeError(f"{text!r} has no known suffix; {fits}")
    return Path(text)


def listed(text: str) -> tuple[str, ...]:
    """Read names with commas between them, without repeated ones."""
    names = tuple(text.split(","))
    if not all(names):
        raise ArgumentTypeError(f"{text!r} has an empty name; separate names by one comma")
    return tuple(dict.fromkeys(names))


def some_of(table: Mapping[str, T], refusal: str) -> Callable[[str], tuple[T, ...]]:
    """Return a reader of keys of a table, or ``all``, that gives each of their values once.

    `refusal` says why another key is refused.
    """

    def read(text: str) -> tuple[T, ...]:
        names = tuple(table) if text == ALL else listed(text)
        values = (table[_known(name, table, refusal, f"{ALL} or some of")] for name in names)
        return tuple(dict.fromkeys(values))

    return read


def algorithms(names: Collection[str], refusal: str) -> Callable[[str], tuple[str, ...]]:
    """Return a reader of these algorithms and of other packages' ones; ``all`` stays."""

    def read(text: str) -> tuple[str, ...]:
        others = {name for each in registered().values() for name in each}
        known, how = (*names, *sorted(others)), f"{ALL} or some of"
        return tuple(
            name if name == ALL else _known(name, known, refusal, how) for name in listed(text)
        )

    return read
