"""Flags that several verbs have, and readers of their values."""

import argparse
import re
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from hpccomm import units
from hpccomm.bench.flag import Flag
from hpccomm.bench.perf import readers
from hpccomm.errors import UsageError

if TYPE_CHECKING:
    from hpccomm.results.archive import Query

RUN = Flag(
    "--run NAME|INDEX",
    str,
    "the run or training, by name, or by number among the runs: 1 is the first, -1 the last (default: "
    "the last run; without runs, the last training)",
)
JSON = Flag("--json", bool, "print JSON for scripts instead of text")
ADD_RUN = Flag("--output FILE.h5", readers.file, "add the run to this file")
ANY_MACHINE = Flag("--any-machine", bool, "compare runs of machines that differ")
CASE = "--case COLLECTIVE[:SIZE[:TYPE]]"


def refuse(args: argparse.Namespace, names: Iterable[str], why: str) -> None:
    """Raise if one of some flags is given.

    Raises
    ------
    UsageError
        Its text is that flag, and then `why`.
    """
    for name in names:
        if (value := getattr(args, name)) is not None and value is not False:  # 0 is given, too
            raise UsageError(f"--{name} {why}")


_AGO = {"d": 1, "w": 7}


def case(text: str) -> tuple[str, int | None, str | None]:
    """Read a case: collective, and perhaps size and type."""
    name, _, rest = text.partition(":")
    size, _, dtype = rest.partition(":")
    if not name:
        raise argparse.ArgumentTypeError(
            f"{text!r} names no collective; give one such as all_reduce:1M"
        )
    return name, units.size(size) if size else None, dtype or None


def moment(text: str) -> datetime:
    """Read a date or time in this place's time zone, or how many days or weeks ago."""
    if re.fullmatch(r"\d+[dw]", text):
        days = int(text[:-1]) * _AGO[text[-1]]
        return datetime.now().astimezone() - timedelta(days=days)
    try:
        return datetime.fromisoformat(text).astimezone()
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a date; give one such as 2026-11-01 or 2026-11-01T08:00, or 7d for a week ago"
        ) from None


LOOKED_FOR = (
    Flag(
        CASE, case, "runs that have measured this: all_reduce, all_reduce:1M, all_reduce:1M:float"
    ),
    Flag("--since DATE", moment, "runs started then or later: 2026-11-01, or 7d for a week ago"),
    Flag("--until DATE", moment, "runs started before then"),
    Flag("--host PATTERN", str, "runs on such a host: 'gpu-1*'"),
)
"""Flags that search for runs."""


def query(args: argparse.Namespace) -> "Query":
    """Return the query of the flags in `LOOKED_FOR`."""
    from hpccomm.results.archive import Query

    collective, size, dtype = args.case or (None, None, None)
    return Query(collective, size, dtype, args.since, args.until, args.host)
