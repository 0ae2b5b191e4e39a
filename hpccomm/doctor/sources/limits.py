"""What this process may have: locked memory, files, processes, stack."""

import re
from pathlib import Path
from typing import Any

from hpccomm.doctor.reading import Reading

_LIMITS = {
    "memlock": "Max locked memory",
    "open_files": "Max open files",
    "processes": "Max processes",
    "stack": "Max stack size",
}


def gather(root: Path = Path("/")) -> dict[str, Any]:
    """Return the limits: numbers, or None where there is no limit."""
    reading = Reading(root)
    for fact, title in _LIMITS.items():
        reading.file(fact, "/proc/self/limits", lambda text, title=title: _limit(text, title))  # type: ignore[misc]
    return reading.facts()


def _limit(text: str, title: str) -> dict[str, int | None]:
    found = re.search(rf"^{title} +(\S+) +(\S+)", text, re.MULTILINE)
    if found is None:
        raise LookupError(f"/proc/self/limits has no line {title!r}")
    soft, hard = (None if word == "unlimited" else int(word) for word in found.groups())
    return {"soft": soft, "hard": hard}
