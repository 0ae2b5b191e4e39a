"""The folder of a job's flight dumps.

Files come from jobs that broke. Whatever cannot be read is one line of text, and the rest is read.
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path

from hpccomm.diagnosis.dumps import Damaged, Dump, parse
from hpccomm.errors import UsageError
from hpccomm.files.regular import open_regular

NAME = re.compile(r"rank_(\d+)\.json")
"""Name of a rank's file."""

LARGEST = 1 << 28
"""Bytes of the largest file that is read: a hundred times what a full recorder writes."""


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
        A line for each file that was not taken, with the reason.
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
        found = NAME.fullmatch(name)
        if found is None:
            whole = re.match(r"\.rank_\d+", name)
            if whole and f"{whole[0][1:]}.json" in names:
                continue  # the dump before that is whole
            if name.startswith((".rank_", "rank_")):
                passed_over.append(f"{name} is half-written: its process ended meanwhile")
            else:
                passed_over.append(f"{name} is no dump (those are named rank_0.json, ...)")
            continue
        try:
            dump = parse(_content(folder / name), folder / name)
            if dump.rank != int(found[1]):
                raise Damaged(f"it is the dump of rank {dump.rank}: it was renamed")
        except Damaged as damage:
            passed_over.append(f"{name} cannot be used: {damage}")
        else:
            dumps.append(dump)
    dumps, strangers = _of_one_job(dumps)
    passed_over += [
        f"{each.file.name} is of another job: its communicators are not those of the others"
        for each in strangers
    ]
    if not dumps:
        seen = f": {'; '.join(passed_over[:3])}" if passed_over else ": it is empty"
        raise UsageError(
            f"{folder} holds no dump that can be read{seen}. Give the directory that a failed job "
            "wrote (HPCCOMM_DUMP_DIR)"
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
    found = NAME.fullmatch(name)
    return (int(found[1]), "") if found else (1 << 62, name)


def _content(path: Path) -> bytes:
    """Return the bytes of a regular file; of a pipe nothing is awaited."""
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            if size > LARGEST:
                raise Damaged(f"it has {size} bytes, more than any dump")
            return file.read(LARGEST + 1) or b""
    except OSError as error:
        raise Damaged(error.strerror or str(error)) from error


def _of_one_job(dumps: list[Dump]) -> tuple[list[Dump], list[Dump]]:
    """Return the dumps of the job that wrote last, and those that an earlier job left in the folder.

    Ranks of one job know communicators in common, or are in communicators that have no rank in common,
    and give the same name of the job. A rank that has made none may belong to any.
    """
    parts: list[tuple[set[str], list[Dump]]] = []
    for dump in dumps:
        known = {uid for uid, group in dump.groups.items() if len(group.members) > 1}
        if not known:
            continue
        together = [part for part in parts if part[0] & known]
        parts = [part for part in parts if not part[0] & known]
        parts.append(
            (
                known.union(*(part[0] for part in together)),
                [dump, *(each for part in together for each in part[1])],
            )
        )
    if len(parts) < 2:
        return dumps, []
    last = max(parts, key=lambda part: max(dump.time for dump in part[1]))[1]
    strangers = [
        dump for _, part in parts if part is not last and not _beside(part, last) for dump in part
    ]
    others = {dump.rank for dump in strangers}
    return [dump for dump in dumps if dump.rank not in others], strangers


def _beside(some: list[Dump], last: list[Dump]) -> bool:
    """Whether dumps without a communicator in common are of one job all the same."""
    jobs = {dump.job for dump in (*some, *last)}
    return len(jobs) == 1 and "" not in jobs and not _members(some) & _members(last)


def _members(dumps: list[Dump]) -> set[int]:
    return {rank for dump in dumps for group in dump.groups.values() for rank in group.members}
