"""How sources read facts: a `Reading` stores each fact, or the reason why it cannot be read.

All sources use it, `job`, and the modules of `hpccomm.tools.perf` that look at links and devices. Rules use `rows`, and
the commands ``doctor`` and ``env`` use `saved`. ``files.tsv`` lists the facts that one pattern finds in one file.
"""

import json
import re
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from hpccomm import spelling
from hpccomm.errors import UsageError

T = TypeVar("T")

ALL_USERS = ["0", "0", "4294967295"]
"""Contents of /proc/PID/uid_map outside of user namespaces."""

KINDS: dict[str, Callable[[str], Any]] = {
    "text": lambda text: " ".join(text.split()),
    "words": str.split,
    "int": int,
    "ints": lambda text: [*map(int, text.split())],
    "float": float,
    "kib": lambda text: int(text) * 1024,
    "limit": lambda text: None if text == "unlimited" else int(text),
}
"""Functions that make a fact of ``files.tsv`` from a text, by its kind. A fact of the kind ``has`` is True if its pattern
is in the file, else False."""


def rows(file: str) -> Sequence[Mapping[str, Any]]:
    """Return the rows of a table of this package, each a mapping from the columns of its header."""
    return spelling.rows("hpccomm.tools.doctor", file)


def _parsed(row: Mapping[str, str], text: str) -> Any:
    """Return a row's fact from a text; raise LookupError or ValueError if the text has none."""
    match = re.search(row["pattern"] or "(?s)(.*)", text, re.MULTILINE)
    if row["kind"] == "has":
        return match is not None
    if match is None:
        raise LookupError(f"{row['file']} has nothing like {row['pattern']}")
    return KINDS[row["kind"]](match[1])


class Reading:
    """The facts of one source while they are read.

    Parameters
    ----------
    root : Path
        Root of the file system; in tests, a folder with made-up files.
    """

    def __init__(self, root: Path = Path("/")) -> None:
        self.root = root
        self._found: dict[str, Any] = {}
        self._unread: dict[str, str] = {}

    def path(self, name: str) -> Path:
        """Return an absolute path below the root."""
        return self.root / name.lstrip("/")

    def text(self, name: str) -> str:
        """Return the text of a file, without the white space around it.

        Raises
        ------
        OSError
            If it cannot be read.
        """
        return self.path(name).read_text(errors="replace").strip()

    def optional_text(self, file: Path) -> str | None:
        """Return the text of an optional file; None if it is missing or cannot be read.

        If the file is there and cannot be read, the reason is stored under its path.
        """
        try:
            return file.read_text(errors="replace").strip()
        except FileNotFoundError:
            return None
        except OSError as error:
            self.miss(str(file.relative_to(self.root)), error.strerror or str(error))
            return None

    def matches(self, name: str, pattern: str) -> Iterator[Path]:
        """Yield the sorted paths in a folder that match a pattern. A missing folder has none."""
        yield from sorted(self.path(name).glob(pattern))

    def take(self, fact: str, read: Callable[[], Any]) -> Any:
        """Store the result of a function as a fact; if it raises, store the reason.

        Parameters
        ----------
        fact : str
            The fact's name in the source; dots lead into dicts, as in ``devices.0.uuid``.
        read : callable
            Returns the fact, of JSON types. Raises `OSError`, `ValueError` or `LookupError` if there is none.

        Returns
        -------
        object
            The fact, or None.
        """
        try:
            value = read()
        except (OSError, ValueError, LookupError) as error:
            self.miss(fact, why(error))
            return None
        self.put(fact, value)
        return value

    def file(self, fact: str, name: str, parse: Callable[[str], Any] = str) -> Any:
        """Store what `parse` makes of a file's text as a fact. Errors are stored as by `take`."""
        return self.take(fact, lambda: parse(self.text(name)))

    def files(self, of: str) -> None:
        """Store the facts that ``files.tsv`` lists for a source. Errors are stored as by `take`."""
        for row in rows("files.tsv"):
            if row["of"] == of:
                self.file(row["fact"], row["file"], partial(_parsed, row))

    def below(self, of: str, folder: Path) -> dict[str, Any]:
        """Return the facts that ``files.tsv`` lists for a device or a port, as far as its folder has them."""
        facts = {}
        for row in rows("files.tsv"):
            text = self.optional_text(folder / row["file"].lstrip("/")) if row["of"] == of else None
            if text is not None:
                with suppress(LookupError, ValueError):
                    facts[row["fact"]] = _parsed(row, text)
        return facts

    def put(self, fact: str, value: Any) -> None:
        """Store a fact."""
        *folders, last = fact.split(".")
        into = self._found
        for folder in folders:
            into = into.setdefault(folder, {})
        into[last] = value

    def miss(self, fact: str, reason: str) -> None:
        """Store why a fact is not known."""
        self._unread[fact] = reason

    def facts(self) -> dict[str, Any]:
        """Return the facts. ``unread`` has the reason for each missing one, by its name."""
        return self._found | ({"unread": self._unread} if self._unread else {})


def read(source: Callable[..., None], root: Path = Path("/"), **options: Any) -> dict[str, Any]:
    """Return the facts that a source finds below a root. An example is ``read(host.gather)``."""
    reading = Reading(root)
    source(reading, **options)
    return reading.facts()


def saved(file: Path, verb: str, pick: Callable[[Any], T]) -> T:
    """Return what `pick` takes from the report that ``--against`` names: ``hpccomm VERB --json`` has written it.

    Raises
    ------
    UsageError
        If the file cannot be read, or is not such a report.
    """
    try:
        return pick(json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, LookupError, TypeError, AttributeError, StopIteration) as error:
        raise UsageError(
            f"--against {file}: {why(error)}; give a file that hpccomm {verb} --json has written"
        ) from error


def why(error: Exception) -> str:
    """Return in a few words why a fact could not be read."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error.args[0]) if error.args else type(error).__name__


def run(command: Sequence[str], patience: float) -> "subprocess.CompletedProcess[str]":
    """Run a command for at most `patience` seconds, and return its status and output."""
    return subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True,
        text=True, errors="replace", timeout=patience, check=False,
    )  # fmt: skip


def fields(text: str) -> dict[str, str]:
    """Return the values by name of a text with lines ``name: value`` or ``name value``, such as that of /proc/meminfo."""
    matches = re.finditer(r"^([^:\s]+):?[ \t]+(.*)$", text, re.MULTILINE)
    return {line[1]: line[2] for line in matches}
