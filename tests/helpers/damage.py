"""Damaged results files by seed, read by `hpccomm show`, `export` and the tuning file's reader.

Run as a program it damages files of real runs::

    python tests/helpers/damage.py FOLDER 0 2000 RUN.h5 TUNE.h5

It prints of each seed what of that was not right; it ends with status 1 if anything was. A crash or a loop ends it at its seed.
"""

import contextlib
import faulthandler
import io
import json
import random
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import h5py

from hpccomm.calls import policy
from hpccomm.errors import ConfigurationError
from hpccomm.results.lines import UNKNOWN_END
from hpccomm.results.timings import SUMMARY
from hpccomm.tools.main import main

SECONDS = 60.0
"""No reading takes as long."""

PAGE = 4096


def flip(data: bytearray, chance: random.Random, times: int) -> None:
    for at in chance.sample(range(len(data)), times):
        data[at] ^= chance.randrange(1, 256)


def truncate(data: bytearray, chance: random.Random) -> None:
    del data[chance.randrange(len(data)) :]


def blank(data: bytearray, chance: random.Random) -> None:
    at = chance.randrange(0, len(data), PAGE)
    data[at : at + PAGE] = bytes(len(data[at : at + PAGE]))


def swap(data: bytearray, chance: random.Random) -> None:
    one, other = chance.sample(range(len(data) // PAGE), 2)
    page = data[one * PAGE : (one + 1) * PAGE]
    data[one * PAGE : (one + 1) * PAGE] = data[other * PAGE : (other + 1) * PAGE]
    data[other * PAGE : (other + 1) * PAGE] = page


def duplicate(data: bytearray, chance: random.Random) -> None:
    one, other = chance.sample(range(len(data) // PAGE), 2)
    data[one * PAGE : (one + 1) * PAGE] = data[other * PAGE : (other + 1) * PAGE]


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


def shown(path: Path) -> Iterator[tuple[str, int, str, str]]:
    """Give what each reader of a results file shows of all its runs: its name, status, output and errors."""
    for run in ("1", "2"):
        yield (f"show {run}", *called("show", str(path), "--run", run))
        yield (f"csv {run}", *called("export", str(path), "--format", "csv", "--run", run))
        yield (f"json {run}", *called("export", str(path), "--format", "json", "--run", run))
    training = ("export", str(path), "--format", "csv", "--run", "recording0001")
    yield ("steps", *called(*training))
    yield ("verify", *called("show", "--verify", str(path)))
    try:
        yield "table", 0, repr(policy.read(str(path))), ""
    except ConfigurationError as error:
        yield "table", 2, "", f"hpccomm: error: {error}\n"


def leaves(value: object, place: tuple[object, ...] = ()) -> set[tuple[object, ...]]:
    """Return all values of a JSON document with their keys; those of a list without their number."""
    if isinstance(value, dict):
        return {leaf for key, each in value.items() for leaf in leaves(each, (*place, key))}
    if isinstance(value, list):
        return {leaf for each in value for leaf in leaves(each, place)}
    return {(*place, value)}


def results(document: dict[str, object]) -> set[str]:
    """Return the measurements of a JSON document, each with what identifies its line."""
    found = set()
    for line in document["results"]:
        line = dict(line)
        places = ("out_of_place", "in_place", "out_of_place_per_iter", "in_place_per_iter")
        measured = {place: line.pop(place, None) for place in places}
        found |= {json.dumps([line, place, each]) for place, each in measured.items() if each}
    return found


def invented(reader: str, text: str, original: str) -> set[object]:
    """Return what a reader shows of a damaged file and does not show of the original."""
    if not text or reader == "verify":
        return set()
    if reader.startswith("json"):
        one, other = json.loads(text), json.loads(original)
        new = results(one) - results(other)
        del one["results"], other["results"], one["errors"], other["errors"]
        left_out = {("out_of_bounds", "count", None), ("out_of_bounds", "okay", "unchecked")}
        left_out.add(("average_bus_bandwidth", "bandwidth", "nan"))
        return new | (leaves(one) - leaves(other) - left_out)
    if reader.startswith("show"):
        return invented_lines(text, original)
    known = set(original.splitlines())
    if reader.startswith("csv"):  # without its samples a row has no statistics
        choosing = [line.split(",")[: -len(SUMMARY)] for line in known]
        known |= {",".join([*line, *[""] * len(SUMMARY)]) for line in choosing}
    return set(text.splitlines()) - known


def without_end(line: str) -> str:
    """Return a line of the facts without what damage of rows and of the end takes from it."""
    if re.match("# [* ] (run|recording)", line):
        return re.sub(r"(?<=rank|anks)  .*", "", line)
    ends = f"completed|{re.escape(UNKNOWN_END)}|interrupted( or running)?: .*"
    return re.sub(f"(?<=: )({ends})$", "", re.sub(" to [0-9: -]+ by ", " by ", line))


def invented_lines(text: str, original: str) -> set[object]:
    """As `invented`, of tables: of a line each half counts by itself, and may be N/A."""

    def figures(line: str) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        words = line.split()
        half = (len(words) - 5) // 2
        return tuple(words[:5]), [tuple(words[5 : 5 + half]), tuple(words[5 + half :])]

    known = set(original.splitlines())
    known |= {without_end(line) for line in known}
    halves = {
        (lead, place, each)
        for line in known
        if line[:1] == " "
        for lead, pair in [figures(line)]
        for place, each in enumerate(pair)
    }
    new: set[object] = set()
    for line in set(text.splitlines()) - known:
        if line[:1] != " ":
            if line not in known and without_end(line) not in known:
                new.add(line)
            continue
        lead, pair = figures(line)
        for place, each in enumerate(pair):
            blanked = any(
                known_lead == lead
                and known_place == place
                and all(a in (b, "N/A") for a, b in zip(each, known_each, strict=True))
                for known_lead, known_place, known_each in halves
            )
            if not blanked and set(each) != {"N/A"}:
                new.add((lead, place, each))
    return new


def wrongs(path: Path, originals: dict[str, str]) -> list[str]:
    """Return what is wrong in what is made of a damaged file."""
    wrong = []
    for reader, status, out, err in shown(path):
        new = invented(reader, out, originals[reader])
        if new:
            wrong.append(f"{reader} shows what was not stored: {sorted(map(str, new))[:3]}")
        if status not in (0, 2) or (status == 2 and reader != "verify" and not err):
            wrong.append(f"{reader} ends with status {status} and says {err!r}")
        started = ("hpccomm: error: ", "hpccomm: damaged: ")
        wrong += [
            f"{reader} says {line}" for line in err.splitlines() if not line.startswith(started)
        ]
        if err.count("hpccomm: error: ") > 1:
            wrong.append(f"{reader} refuses in several lines")
        if originals[reader] and out != originals[reader] and not status:
            wrong.append(f"{reader} leaves something out with status 0")
    return wrong


def judged(folder: Path, files: list[Path], seeds: range) -> int:
    """Damage files by seeds and read them; print what was not right of each, and return how many were not right."""
    path, originals, failed = folder / "results.h5", [], 0
    for file in files:
        path.write_bytes(file.read_bytes())
        originals.append((file.read_bytes(), {reader: out for reader, _, out, _ in shown(path)}))
    for seed in seeds:
        data, said = originals[seed // len(KINDS) % len(files)]
        kind, spoilt = damaged(data, seed)
        path.write_bytes(spoilt)
        print(f"seed {seed} ({kind}):", end=" ", flush=True)  # the last words of a crash
        faulthandler.dump_traceback_later(SECONDS, exit=True)
        wrong = wrongs(path, said)
        print("\n  ".join(wrong or ["right"]))
        failed += bool(wrong)
    faulthandler.cancel_dump_traceback_later()
    return failed


def program(folder: str, first: str, stop: str, *names: str) -> int:
    failed = judged(Path(folder), [Path(name) for name in names], range(int(first), int(stop)))
    print(f"{int(stop) - int(first)} damaged files, not right: {failed}")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(program(*sys.argv[1:]))
