"""How a source reads: what can be read becomes a fact, what cannot is named with the reason."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ALL_USERS = ["0", "0", "4294967295"]
"""What /proc/PID/uid_map holds outside of namespaces of users."""


class Reading:
    """The facts of one source while they are read.

    Parameters
    ----------
    root : Path
        Of the file system; a folder with planted files in tests.
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

    def line(self, file: Path) -> str | None:
        """Return the text of a file that need not be there; None where it is not, or cannot be read.

        Why it cannot be read is kept under its path.
        """
        try:
            return file.read_text(errors="replace").strip()
        except FileNotFoundError:
            return None
        except OSError as error:
            self.miss(str(file.relative_to(self.root)), error.strerror or str(error))
            return None

    def matches(self, name: str, pattern: str) -> Iterator[Path]:
        """Yield what matches a pattern in a folder, in order; nothing where there is no such folder."""
        yield from sorted(self.path(name).glob(pattern))

    def take(self, fact: str, read: Callable[[], Any]) -> Any:
        """Keep what a function returns as a fact; where it raises, keep why the fact is not known.

        Parameters
        ----------
        fact : str
            Its name in the source; dots lead into dicts, as in ``devices.0.uuid``.
        read : callable
            Returns the fact, of JSON types. Raises `OSError`, `ValueError` or `LookupError` if it is not to be had.

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
        """Keep the text of a file as a fact, parsed; see `take`."""
        return self.take(fact, lambda: parse(self.text(name)))

    def put(self, fact: str, value: Any) -> None:
        """Keep a fact."""
        *folders, last = fact.split(".")
        into = self._found
        for folder in folders:
            into = into.setdefault(folder, {})
        into[last] = value

    def miss(self, fact: str, reason: str) -> None:
        """Keep why a fact is not known."""
        self._unread[fact] = reason

    def facts(self) -> dict[str, Any]:
        """Return the facts; ``unread`` names those that are missing, with the reason."""
        return self._found | ({"unread": self._unread} if self._unread else {})


def why(error: Exception) -> str:
    """Return in a few words why something cannot be read."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error.args[0]) if error.args else type(error).__name__


def fields(text: str) -> dict[str, str]:
    """Return the lines ``name: value`` or ``name value`` of a file such as /proc/meminfo."""
    found = re.finditer(r"^([^:\s]+):?[ \t]+(.*)$", text, re.MULTILINE)
    return {line[1]: line[2] for line in found}


def whole(text: str | None) -> int | None:
    """Return the number that a file holds; None where it holds another text, or is not there."""
    return int(text) if text and re.fullmatch(r"-?\d+", text) else None
