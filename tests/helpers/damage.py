"""Damaged results files by seed, read by the reader of results, `hpccomm show`, `export` and the tuning file's reader.

Run as a program it damages files of real runs::

    python tests/helpers/damage.py FOLDER 0 2000 RUN.h5 TUNE.h5

It prints of each seed what is not right; it ends with status 1 if anything is. A crash or a loop ends it at its seed.
"""

import contextlib
import faulthandler
import io
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py

from hpccomm.calls import policy
from hpccomm.errors import ConfigurationError, ResultsError
from hpccomm.results import reader
from hpccomm.results.lines import UNKNOWN_END
from hpccomm.tools.main import main

SECONDS = 60.0
"""No reading takes as long."""

PAGE = 4096


def flip(data: bytearray, chance: random.Random, times: int) -> None:
    """Change some bytes."""
    for at in chance.sample(range(len(data)), times):
        data[at] ^= chance.randrange(1, 256)


def truncate(data: bytearray, chance: random.Random) -> None:
    """Cut the end off."""
    del data[chance.randrange(len(data)) :]


def blank(data: bytearray, chance: random.Random) -> None:
    """Make a page zero, as a file system does that lost it."""
    at = chance.randrange(0, len(data), PAGE)
    data[at : at + PAGE] = bytes(len(data[at : at + PAGE]))


def two_pages(data: bytearray, chance: random.Random) -> Iterator[slice]:
    """Choose two pages."""
    pages = chance.sample(range(len(data) // PAGE), 2)
    return (slice(at * PAGE, (at + 1) * PAGE) for at in pages)


def swap(data: bytearray, chance: random.Random) -> None:
    """Exchange two pages."""
    one, other = two_pages(data, chance)
    data[one], data[other] = data[other], data[one]


def duplicate(data: bytearray, chance: random.Random) -> None:
    """Write a page over another one."""
    one, other = two_pages(data, chance)
    data[one] = data[other]


def structure(data: bytearray, chance: random.Random) -> None:
    """Copy a few bytes within the first pages, or blank them: there HDF5's own structures lie."""
    one, other = chance.sample(range(2 * PAGE), 2)
    length = chance.choice((4, 16, 64, 256))
    copied = data[other : other + length] if chance.random() < 0.5 else bytes(length)
    data[one : one + length] = copied


KINDS: dict[str, Callable[[bytearray, random.Random], None]] = {
    "one byte": lambda data, chance: flip(data, chance, 1),
    "8 bytes": lambda data, chance: flip(data, chance, 8),
    "truncated": truncate,
    "a blank page": blank,
    "pages swapped": swap,
    "a page twice": duplicate,
    "structure": structure,
}


def damaged(original: bytes, seed: int) -> tuple[str, bytes]:
    """Return the kind of damage of a seed, and the damaged file, which differs from the original."""
    chance = random.Random(seed)
    kind = list(KINDS)[seed % len(KINDS)]
    data = bytearray(original)
    while data == original:
        KINDS[kind](data, chance)
    return kind, bytes(data)


def spoil(path: Path, name: str, *at: int) -> None:
    """Flip a bit of bytes of a dataset."""
    with h5py.File(path, locking=False) as file:
        first = file[name].id.get_offset()
    data = bytearray(path.read_bytes())
    for each in at:
        data[first + each] ^= 1
    path.write_bytes(data)


def called(*words: object) -> tuple[int, str, str]:
    """Return status, output and errors of a command, which runs in this process."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            status = main([*map(str, words)])
        except SystemExit as leaving:  # as after --help
            status = int(leaving.code or 0)
    return status, out.getvalue(), err.getvalue()


def output(*words: object, status: int = 0) -> str:
    """Return what a command prints that ends with this status; with 0 it has no errors."""
    ended, out, err = called(*words)
    assert (ended, bool(err)) == (status, bool(status)), err
    return out


def refused(*words: object) -> str:
    """Return what a command says that is refused, which prints nothing else."""
    status, out, err = called(*words)
    assert (status, out) == (2, ""), err
    return err


def parts(path: Path) -> dict[tuple[object, ...], object]:
    """Return all that can be read of a file, by its place; of a damaged one the rest."""
    try:
        runs, recordings, _ = reader.examine(path)
    except ResultsError:
        return {}
    found: dict[tuple[object, ...], object] = {}

    def add(name: str, what: str, number: int, read: Callable[[int], Any], index: int) -> None:
        with contextlib.suppress(ResultsError):
            found[name, what, number] = read(index).tobytes()

    for run in runs:
        found[run.name, "facts"] = repr((run.info, run.entries))  # a NaN equals no other
        for index, number in enumerate(run.numbers):
            found[run.name, "row", number] = repr((run.rows[index], run.timings[index]))
            add(run.name, "samples", number, run.samples, index)
    for each in recordings:
        found[each.name, "facts"] = repr(each.facts)
        found |= {(each.name, "event", repr(event)): 1 for event in (*each.buckets, *each.notes)}
        for index, step in enumerate(each.steps):
            found[each.name, "step", int(step["step"])] = step.tobytes()
            add(each.name, "seconds", int(step["step"]), each.bucket_seconds, index)
    for section in (*runs, *recordings):
        if section.status != UNKNOWN_END and not section.status.startswith("interrupted"):
            found[section.name, "end"] = section.status
    with contextlib.suppress(ConfigurationError):
        found["table",] = repr(policy.read(str(path)))
    return found


def verdict(path: Path, stored: dict[tuple[object, ...], object]) -> list[str]:
    """Say what of a damaged file is not right: what was not stored, and what is lost and not said."""
    found = parts(path)
    wrong = [f"{place} was not stored" for place in found if found[place] != stored.get(place)]
    lost = {*stored} - {*found} - {("table",)}
    exports = ("csv --run 1", "json --run 1", "csv --run recording0001")
    for words in (
        "show --run 1",
        *(f"export --format {each}" for each in exports),
        "show --verify",
    ):
        status, _, err = called(*words.split(), path)
        verifies = "--verify" in words
        if status not in (0, 2) or (status == 2 and not err and not verifies):
            wrong.append(f"{words} ends with status {status} and says {err!r}")
        if lost and verifies and not status:
            wrong.append(f"{lost} are left out without a word")
        known = ("hpccomm: error: ", "hpccomm: damaged: ")
        wrong += [f"{words} says {line}" for line in err.splitlines() if not line.startswith(known)]
        if err.count("hpccomm: error: ") > 1:
            wrong.append(f"{words} refuses in several lines")
    return wrong


def program(folder: str, first: str, stop: str, *names: str) -> int:
    """Damage files by seeds and read them; print what is not right, and return whether anything is."""
    path, failed, seeds = Path(folder, "results.h5"), 0, range(int(first), int(stop))
    originals = [(file.read_bytes(), parts(file)) for file in map(Path, names)]
    for seed in seeds:
        data, stored = originals[seed // len(KINDS) % len(originals)]
        kind, spoilt = damaged(data, seed)
        path.write_bytes(spoilt)
        print(f"seed {seed} ({kind}):", end=" ", flush=True)  # the last words of a crash
        faulthandler.dump_traceback_later(SECONDS, exit=True)
        wrong = verdict(path, stored)
        print("\n  ".join(["read", *wrong]))
        failed += bool(wrong)
    faulthandler.cancel_dump_traceback_later()
    print(f"{len(seeds)} damaged files, not right: {failed}")
    return failed > 0


if __name__ == "__main__":
    sys.exit(program(*sys.argv[1:]))
