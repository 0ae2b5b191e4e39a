"""Sizes, times, ranks and numbers of things as text, and things by what they share, for all layers."""

import re
import textwrap
from collections.abc import Hashable, Iterable, Mapping
from typing import TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
WIDTH = 110
"""The most characters in a line of a report."""

MOST_NAMED = 8
"""The most ranks and spans of ranks that a sentence names. It counts the others."""

_BINARY = (("GiB", 30), ("MiB", 20), ("KiB", 10))
_SIZES = {"": "1", "B": "1"} | {
    letters: str(1 << bits) for unit, bits in _BINARY for letters in (unit[0], unit.upper())
}
_RATES = {"": "1", "K": "1e3", "M": "1e6", "G": "1e9"}
_TIMES = {"": "1", "us": "1e-6", "ms": "1e-3", "s": "1", "m": "60", "min": "60", "h": "3600"}
# As scanf reads, without signs, hexadecimal numbers and text after the unit.
_NUMBER = re.compile(r"((?:\d+\.?\d*|\.\d+)(?:[Ee][+-]?\d\d?)?) *([A-Za-z]*)", re.ASCII)


def counted(count: int, what: str) -> str:
    """Return a number of things in words.

    Examples
    --------
    >>> counted(1, "rank"), counted(3, "rank"), counted(0, "row")
    ('1 rank', '3 ranks', '0 rows')
    """
    return f"{count} {what}" + ("s" if count != 1 else "")


def counted_all(**counts: int) -> str:
    """Return the numbers of several things in words, without those that are not there.

    Examples
    --------
    >>> counted_all(run=1, recording=0, step=2)
    '1 run and 2 steps'
    """
    return " and ".join(counted(count, what) for what, count in counts.items() if count)


def few(names: Iterable[object], most: int) -> str:
    """Return the first names, and how many more there are.

    Examples
    --------
    >>> few("abcd", 2), few("ab", 2)
    ('a, b and 2 more', 'a, b')
    """
    words = [str(name) for name in names]
    more = len(words) - most
    return ", ".join(words[:most]) + (f" and {more} more" if more > 0 else "")


def grouped(pairs: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    """Return the values of each key, both in their order.

    Examples
    --------
    >>> grouped([("a", 1), ("b", 2), ("a", 3)])
    {'a': [1, 3], 'b': [2]}
    """
    groups: dict[K, list[V]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups


def wrapped(text: str, first: int, others: int) -> list[str]:
    """Return a text as lines of a report, with that many blanks before the first and before the others."""
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=" " * first,
        subsequent_indent=" " * others,
        break_long_words=False,
        break_on_hyphens=False,
    )


def spans(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Return the first and the last of each run of neighbors, in ascending order."""
    spans: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if spans and spans[-1][1] == number - 1:
            spans[-1] = spans[-1][0], number
        else:
            spans.append((number, number))
    return spans


def ranges(numbers: Iterable[int]) -> str:
    """Return numbers as ranges: ``0-3,8``. `numbers` reads them."""
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in spans(numbers))


def numbers(text: str) -> list[int]:
    """Read numbers that are written as ranges.

    Raises
    ------
    ValueError
        If the text is of another form.
    """
    ranks: list[int] = []
    for part in text.replace(" ", "").split(",") if text else ():
        first, _, last = part.partition("-")
        ranks += range(int(first), int(last or first) + 1)
    return ranks


def ranks_named(ranks: Iterable[int]) -> str:
    """Return ranks in words.

    Examples
    --------
    >>> ranks_named([3]), ranks_named([0, 2]), ranks_named([0, 1, 2, 5, 7])
    ('rank 3', 'ranks 0 and 2', 'ranks 0-2, 5 and 7')
    >>> ranks_named(range(0, 100, 2))
    'ranks 0, 2, 4, 6, 8, 10, 12, 14 and 42 more'
    """
    parts = [
        part
        for a, b in spans(ranks)
        for part in ([(a, b)] if b > a + 1 else dict.fromkeys(((a, a), (b, b))))
    ]
    words = [str(a) if a == b else f"{a}-{b}" for a, b in parts[:MOST_NAMED]]
    if more := sum(b - a + 1 for a, b in parts[MOST_NAMED:]):
        words.append(f"{more} more")
    plural = "s" if len(words) > 1 or "-" in words[0] else ""
    return f"rank{plural} " + " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def size_text(nbytes: int) -> str:
    """Return a size as short as it can be written exactly: ``64 KiB``, ``1000 B``. `size` reads it."""
    for unit, bits in _BINARY:
        if nbytes and nbytes % (1 << bits) == 0:
            return f"{nbytes >> bits} {unit}"
    return f"{nbytes} B"


def rounded_size(nbytes: float, digits: int = 4) -> str:
    """Return a size, rounded to a number of digits: ``1.5 MiB``."""
    # By the rounded value: just below a MiB is 1 MiB, not 1024 KiB.
    for power, unit in enumerate(("B", "KiB", "MiB", "GiB", "TiB")):
        value = float(f"{nbytes / 1024**power:.{digits}g}")
        if value < 1024:
            return f"{value:g} {unit}"
    return f"{nbytes:g} B"


def size(text: str) -> int:
    """Read a size in bytes, also with a binary unit: ``64K``, ``64 KiB``.

    Raises
    ------
    ValueError
        If it is of another form. The message says what fits.
    """
    fits = "bytes, or a number with K, M or G such as 64K"
    return int(_read(text, text.upper(), _SIZES, f"is not a size; give {fits}"))


def seconds(text: str) -> float:
    """Read a time in seconds, or with one of the units us, ms, s, m and h.

    Raises
    ------
    ValueError
        If it is of another form. The message says what fits.
    """
    fits = "seconds, or a number with us, ms, s, m or h such as 60s"
    return _read(text, text, _TIMES, f"is not a time; give {fits}")


def rate(text: str) -> float:
    """Read bytes a second, also with K, M or G, which are powers of 1000.

    Raises
    ------
    ValueError
        If it is of another form. The message says what fits.
    """
    fits = "bytes a second, or a number with K, M or G such as 10G"
    return _read(text, text.upper(), _RATES, f"is not a rate; give {fits}")


def _read(given: str, text: str, units: Mapping[str, str], refusal: str) -> float:
    """Return a number times its unit; `given` is what a message shows."""
    from decimal import Decimal  # slow to import, and calls do not need it

    match = _NUMBER.fullmatch(text.strip())
    if match is None or match[2] not in units:
        raise ValueError(f"{given!r} {refusal}")
    value = Decimal(match[1]) * Decimal(units[match[2]])
    return int(value) if units is _SIZES else float(value)


_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def xml_text(text: str) -> str:
    """Return a text with U+FFFD for each character that XML does not allow: control characters, half surrogates."""
    return _NOT_XML.sub("\ufffd", text)


def figure(value: float, width: int) -> str:
    """Print a figure with two decimals, one or none, the first that fits; else with an exponent."""
    for precision in (2, 1, 0):
        text = f"{value:{width}.{precision}f}"
        if len(text) <= width:
            return text
    return f"{value:{width}.{1 if width >= 7 else 0}e}"
