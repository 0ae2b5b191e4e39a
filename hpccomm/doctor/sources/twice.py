"""Counters since the system's start, read twice: a rise between the two matters."""

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from hpccomm.doctor.reading import Reading

SECONDS = 0.5


def pause() -> None:
    """Wait between two readings."""
    time.sleep(SECONDS)


def counted(
    reading: Reading, of: str, folders: Sequence[Path], wait: Callable[[], None]
) -> Iterator[tuple[dict[str, int], dict[str, int]]]:
    """Yield for each folder its counters of ``files.tsv``, and the increases."""
    before = [reading.below(of, folder) for folder in folders]
    wait()
    for folder, first in zip(folders, before, strict=True):
        after = reading.below(of, folder)
        rises = {name: value - first.get(name, value) for name, value in after.items()}
        yield after, {name: rise for name, rise in rises.items() if rise > 0}
