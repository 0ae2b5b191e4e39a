"""Reads the folder of a job's flight dumps.

The files come from broken jobs. An unreadable file becomes one line of text, and the rest is read.
`hpccomm.cli.explain` begins with it.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from hpccomm.diagnosis.dumps import DamagedDump, Dump, parse
from hpccomm.errors import UsageError
from hpccomm.files.regular import read_text

NAME = re.compile(r"rank_(\d+)\.json")
"""Name of a rank's file."""


@dataclass(frozen=True, slots=True)
class DumpFolder:
    """The dumps of a folder.

    Attributes
    ----------
    path : Path
        Where they lie.
    dumps : tuple of Dump
        In the order of ranks.
    passed_over : tuple of str
        A line for each other file, with the reason why it is not among them.
    """

    path: Path
    dumps: tuple[Dump, ...]
    passed_over: tuple[str, ...]


def read_folder(folder: Path) -> DumpFolder:
    """Read the dumps of a folder.

    Parameters
    ----------
    folder : Path
        With a file a rank, or with a folder a job: then the job that wrote last is read.

    Raises
    ------
    UsageError
        If it cannot be listed, or holds no dump that can be read.
    """
    names = _listed(folder)
    passed_over = []
    if not any(NAME.fullmatch(name) for name in names):
        jobs = sorted(folder / name for name in names if (folder / name).is_dir())
        jobs = [each for each in jobs if any(NAME.fullmatch(name) for name in _listed(each))]
        if jobs:
            folder = max(jobs, key=_written)
            names = _listed(folder)
            passed_over += [f"{each} is of another job" for each in jobs if each != folder]
    dumps: list[Dump] = []
    for name in names:
        match = NAME.fullmatch(name)
        if match is None:
            whole = re.match(r"\.rank_\d+", name)
            if whole and f"{whole[0][1:]}.json" in names:
                continue  # the dump before that is whole
            if name.startswith((".rank_", "rank_")):
                passed_over.append(f"{name} is half-written: its process ended before it was whole")
            else:
                passed_over.append(f"{name} is not a dump (those are named rank_0.json, ...)")
            continue
        try:
            dump = parse(read_text(folder / name, 1 << 28), folder / name)  # a long record
            if dump.rank != int(match[1]):
                raise DamagedDump(f"it is the dump of rank {dump.rank}: it was renamed")
        except (DamagedDump, OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            passed_over.append(f"{name} cannot be used: {why}")
        else:
            dumps.append(dump)
    dumps, strangers = _of_one_job(dumps)
    of_another = "is of another job: the others have other communicators"
    passed_over += [f"{each.file.name} {of_another}" for each in strangers]
    if not dumps:
        seen = f": {'; '.join(passed_over[:3])}" if passed_over else ": it is empty"
        raise UsageError(
            f"{folder} holds no dump that can be read{seen}. Give the directory that a failed job of "
            "hpccomm wrote (HPCCOMM_DUMP_DIR). torchfrtrace FOLDER reads the pickled dumps of PyTorch's flight recorder; "
            "hpccomm explain FILE says what to do with one in JSON"
        )
    return DumpFolder(folder, tuple(dumps), tuple(passed_over))


def _listed(folder: Path) -> list[str]:
    try:
        return sorted((each.name for each in folder.iterdir()), key=_in_order)
    except OSError as error:
        raise UsageError(
            f"cannot read {folder}: {error.strerror or error}; give the directory of the dumps "
            "(HPCCOMM_DUMP_DIR of the job)"
        ) from error


def _written(folder: Path) -> float:
    """Return when the last file of a folder was written."""
    return max((each.lstat().st_mtime for each in folder.iterdir()), default=0.0)


def _in_order(name: str) -> tuple[int, str]:
    match = NAME.fullmatch(name)
    return (int(match[1]), "") if match else (1 << 62, name)


def _of_one_job(dumps: list[Dump]) -> tuple[list[Dump], list[Dump]]:
    """Return the dumps of the job that wrote last, and an earlier job's dumps in the folder.

    Ranks of one job know communicators in common, or are in communicators that have no rank in common,
    and give the same name of the job. A rank without a communicator may belong to any.
    """
    known = {
        dump.rank: {uid for uid, group in dump.groups.items() if len(group.members) > 1}
        for dump in dumps
    }
    if not any(known.values()):
        return dumps, []
    last = max((dump for dump in dumps if known[dump.rank]), key=lambda dump: dump.time)
    own, before = {last.rank}, set[int]()
    while own != before:
        before, uids = own, set().union(*(known[rank] for rank in own))
        own = own | {rank for rank in known if known[rank] & uids}
    members = _members(dump for dump in dumps if dump.rank in own)
    strangers = [
        dump
        for dump in dumps
        if known[dump.rank]
        and dump.rank not in own
        and not (dump.job == last.job != "" and members.isdisjoint(_members([dump])))
    ]
    others = {dump.rank for dump in strangers}
    return [dump for dump in dumps if dump.rank not in others], strangers


def _members(dumps: Iterable[Dump]) -> set[int]:
    return {rank for dump in dumps for group in dump.groups.values() for rank in group.members}
