"""Counters since the system's start, read twice: a rise between the two matters."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hpccomm.doctor.reading import Reading

SECONDS = 0.5


def pause() -> None:
    """Wait between two readings."""
    time.sleep(SECONDS)


def counted(
    reading: Reading,
    of: str,
    folders: Sequence[Path],
    wait: Callable[[], None],
    about: Callable[[Reading, Path], dict[str, Any]],
) -> list[dict[str, Any]]:
    """Return the facts about each folder, with its counters of ``files.tsv``, and those ``rising``.

    The counters of ``network.losses`` are ``losses``.
    """
    before = [reading.below(of, folder) for folder in folders]
    wait()
    facts = []
    for folder, first in zip(folders, before, strict=True):
        after = reading.below(of, folder)
        rises = {name: value - first.get(name, value) for name, value in after.items()}
        rising = {name: rise for name, rise in rises.items() if rise > 0}
        facts.append(about(reading, folder) | {of.partition(".")[2]: after, "rising": rising})
    return facts
