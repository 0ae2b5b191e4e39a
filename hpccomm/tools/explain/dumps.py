"""Flight dumps as objects. `hpccomm.runtime.dump` writes one, a JSON file, for each rank.

The files come from broken jobs: an unreadable file becomes one line of text, and the others are read.
`explain` reads a folder, and `hpccomm.tools.explain.job` joins its dumps.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any

from hpccomm import errors
from hpccomm.contracts.backend import ANSWERED, Answer, Facts
from hpccomm.errors import UsageError
from hpccomm.results.files import read_text
from hpccomm.runtime.recorder import ASYNC

_ENDED = (errors.CollectiveTimeout, errors.PeerLost, errors.CommunicatorAborted)
FOLLOWING = frozenset(
    each.__name__ for each in (*_ENDED, errors.CommunicationError, KeyboardInterrupt)
)
"""Classes of errors that say that a wait has ended."""

_REFUSED = (errors.UsageError, errors.BufferMismatch, errors.UnsupportedDtype, errors.RankMismatch)
REFUSING = frozenset(each.__name__ for each in _REFUSED)
"""Classes of errors after which the communicator usually can still be used."""

AWAITED = "awaited"
"""How an asynchronous call of mpi4py waits, while the program is blocked until it is over."""


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """One call in the record of one rank.

    Attributes
    ----------
    uid : str
        Uid of the communicator.
    number : int
        Number of the collective on its communicator, from 1, the same on all ranks; 0 for a message.
    operation : str
        Name of the call, such as ``"all_reduce"``.
    terms : mapping
        The arguments that must be equal on all ranks, by field.
    began : float
        Unix time in seconds at which it began, by the clock of the rank's host.
    seconds : float or None
        Seconds that it took; None if it was under way.
    state : str
        ``"scheduled"``, ``"started"``, ``"completed"`` or ``"failed"``.
    error : str
        The error that ended it; empty without one.
    site : str
        The place in the program, such as ``"step(), train.py line 41"``; empty if not known.
    sequence : int
        Number of the call among all calls of its communicator, from 1.
    nbytes : int
        Bytes of the rank's larger array.
    of_mpi4py : bool
        Whether it is a call of mpi4py, and `operation` the name of the method.
    mode : str
        How it waits; see `hpccomm.runtime.recorder`.
    """

    uid: str
    number: int
    operation: str
    terms: Mapping[str, Any] = field(hash=False)
    began: float
    seconds: float | None
    state: str
    error: str
    site: str
    sequence: int = 0
    nbytes: int = 0
    of_mpi4py: bool = False
    mode: str = ""

    @property
    def record(self) -> Facts:
        """The call's fingerprint, as ranks exchange it."""
        return {"operation": self.operation, **self.terms}

    @property
    def open(self) -> bool:
        """Whether it was not completed."""
        return self.state != "completed"

    @property
    def waits(self) -> bool:
        """Whether the program waits for it while it is under way: not for an asynchronous call of mpi4py."""
        return not (self.of_mpi4py and self.mode == ASYNC)

    @property
    def refused(self) -> bool:
        """Whether it raised an error that leaves the communicator usable, so that it waits for no rank."""
        return self.state == "failed" and _class(self.error) in REFUSING

    @property
    def title(self) -> str:
        """Its name; of a message of mpi4py also the peer and the tag: ``Recv(source=1, tag=7)``."""
        if not self.of_mpi4py or self.number:
            return self.operation
        names = {"dst": "dest", "src": "source", "tag": "tag", "target": "rank", "peers": "ranks"}
        parts = self.terms.get("calls", [self.terms])
        said = [f"{names[key]}={each[key]}" for each in parts for key in names if key in each]
        if len(said) == 1 and "tag" in self.terms:
            said.insert(0, "source=ANY_SOURCE")
        return f"{self.operation}({', '.join(said)})".replace("tag=None", "tag=ANY_TAG")

    def waited(self, until: float) -> float:
        """Return the seconds that it took, or those that it had taken at the Unix time `until`."""
        return max(0.0, until - self.began) if self.seconds is None else self.seconds


@dataclass(frozen=True, slots=True)
class Membership:
    """A communicator, as one of its ranks knows it.

    Attributes
    ----------
    uid : str
        Its identity: the same on all its ranks, and different for other communicators.
    name : str
        Its name in messages.
    members : tuple of int
        Its ranks, as ranks of the job.
    """

    uid: str
    name: str
    members: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DumpedError:
    """An error that a rank has raised.

    Attributes
    ----------
    error : str
        Its class and message.
    site : str
        The place in the program.
    ago : float
        Seconds between the error and the dump.
    """

    error: str
    site: str
    ago: float

    @property
    def follows(self) -> bool:
        """Whether it only says that a wait has ended, so that the cause is elsewhere."""
        return _class(self.error) in FOLLOWING

    @property
    def line(self) -> str:
        """Its first line."""
        return self.error.strip().split("\n", maxsplit=1)[0]


@dataclass(frozen=True, slots=True)
class Dump:
    """The dump of one rank.

    Attributes
    ----------
    file : Path
        The file of the dump.
    rank, world_size : int
        The rank, and the number of ranks of the job.
    host : str
        The rank's host.
    pid : int
        The rank's process.
    reason : str
        The reason for which the dump was written.
    time : float
        Unix time in seconds at which it was written.
    groups : mapping of str to Membership
        The rank's communicators, by uid.
    calls : tuple of RecordedCall
        The rank's recorded calls, the oldest first.
    answers : mapping of str to mapping of int to Answer
        The rank's own answer for each communicator, and those of other ranks for which it waited; by uid and rank of
        the job.
    raised : DumpedError or None
        The uncaught exception that ended the rank, if there was one.
    refused : DumpedError or None
        The error of its last refused call, whether or not the program has caught it.
    handled : DumpedError or None
        The exception that the main thread was handling.
    ended : str
        Why the rank has ended, in its own words, if it ended by itself or by a signal; else empty.
    job : str
        A name of the job, which usually identifies it.
    """

    file: Path
    rank: int
    world_size: int
    host: str
    pid: int
    reason: str
    time: float
    groups: Mapping[str, Membership]
    calls: tuple[RecordedCall, ...]
    answers: Mapping[str, Mapping[int, Answer]]
    raised: DumpedError | None
    refused: DumpedError | None
    handled: DumpedError | None
    ended: str
    job: str


class DamagedDump(Exception):
    """The file is not one that a recorder writes."""


def parse(content: str, path: Path) -> Dump:
    """Return the dump that a file holds.

    Raises
    ------
    DamagedDump
        If it is not a dump. The message says why.
    """
    if not content.strip():
        raise DamagedDump("it is empty")
    try:
        return _dump(json.loads(content), path)
    except (ValueError, RecursionError) as error:
        at = error.pos if isinstance(error, json.JSONDecodeError) else -1
        cut = at >= len(content.rstrip()) - 1 or "Unterminated" in str(error)
        raise DamagedDump(f"it is {'cut off' if cut else 'damaged'} ({error})") from None


def _dump(document: object, path: Path) -> Dump:
    whole = _mapping(document, "the document")
    rank = _value(whole, "rank", -1)
    if rank < 0 or "entries" not in whole:
        raise DamagedDump("it lacks its rank or its entries")
    groups = {
        uid: Membership(uid, _value(each, "desc", "") or uid, tuple(_value(each, "ranks", [])))
        for uid, each in _mappings(whole, "pg_config")
    }
    for group in groups.values():
        if not all(type(each) is int and each >= 0 for each in group.members):
            raise DamagedDump(f"communicator {group.name[:40]!r} has members that are not ranks")
        if rank not in group.members:
            raise DamagedDump(f"rank {rank} is not a rank of its communicator {group.name[:40]!r}")
    now, told = dict(_mappings(whole, "now")), dict(_mappings(whole, "answers"))
    answers = {}
    for uid, group in groups.items():
        by_rank = {
            member: told.get(uid, {}).get(str(at)) for at, member in enumerate(group.members)
        } | {rank: now.get(uid)}
        answers[uid] = {
            member: _answer(_mapping(each, "an answer"))
            for member, each in by_rank.items()
            if each is not None
        }
    return Dump(
        file=path,
        rank=rank,
        world_size=max(_value(whole, "world_size", 0), rank + 1),
        groups=groups,
        calls=tuple(
            _call(each, f"entry {at}", now) for at, each in enumerate(_value(whole, "entries", []))
        ),
        answers=answers,
        raised=_error(whole, "raised"),
        refused=_error(whole, "refused"),
        handled=_error(whole, "handled"),
        **_values(whole, host="", pid=0, reason="", time=0.0, ended="", job=""),
    )


def _error(document: Facts, key: str) -> DumpedError | None:
    each = _value(document, key, {})
    return DumpedError(**_values(each, error="", site="", ago=0.0)) if each else None


def _class(text: str) -> str:
    """Return the class with which the text of an error begins."""
    return text.partition(":")[0].strip()


_OF_ONE_RANK = ("object", "dtype")
"""Terms of calls of mpi4py that may differ between ranks."""


def _call(entry: object, what: str, now: Mapping[str, Facts]) -> RecordedCall:
    each = _mapping(entry, what)
    group = each.get("process_group")
    if not (isinstance(group, list) and group and isinstance(group[0], str)):
        raise DamagedDump(f"{what} names no communicator")
    terms = {**_value(each, "terms", {})}
    mode, of_mpi4py = terms.pop("mode", ""), "mpi" in terms
    operation = _value(each, "profiling_name", "").rpartition(":")[2] or "a call"
    state = _value(each, "state", "") or "started"
    site, began = _site(*_value(each, "frames", [])[:1]), _value(each, "time_created_ns", 0.0) / 1e9
    if of_mpi4py:
        operation = str(terms.pop("mpi")).replace("barrier", "Barrier")  # they are one
        terms = {name: value for name, value in terms.items() if name not in _OF_ONE_RANK}
        state = "completed" if state == "failed" else state  # it waits no more
        about, sequence = now.get(group[0], {}), str(_value(each, "op_id", 0))
        since = _value(_value(about, "awaited_since", {}), sequence, 0.0)
        if since and state == "started":
            mode, began = AWAITED, max(began, since)
            if doing := _value(about, "doing", ""):
                site = f"{site}, awaited at {doing}" if site else doing
    elif mode == ASYNC:  # ranks may differ in how they wait
        terms["async_op"] = True
    milliseconds = _value(each, "duration_ms", -1.0)
    return RecordedCall(
        uid=group[0],
        number=0 if each.get("is_p2p") else _value(each, "collective_seq_id", 0),
        operation=operation,
        terms=terms,
        began=began,
        seconds=None if milliseconds < 0 else milliseconds / 1e3,
        state=state,
        error=_value(each, "error", ""),
        site=site,
        sequence=_value(each, "op_id", 0),
        nbytes=_value(each, "nbytes", 0),
        of_mpi4py=of_mpi4py,
        mode=mode,
    )


def _site(frame: object = None) -> str:
    """Return a frame in words: ``step(), train.py line 41``; empty without one."""
    if not isinstance(frame, dict):
        return ""
    name, file, line = (frame.get(key, "") for key in ("name", "filename", "line"))
    where = f"{PurePath(str(file)).name} line {line}"
    return where if name in ("", "<module>") else f"{name}(), {where}"


def _answer(answer: Facts) -> Answer:
    """Return an answer with the facts that diagnosis uses. A rank's answer about itself has no state."""
    facts = _values(answer, doing="", host="")
    closed = _value(answer, "closed", "")
    facts["leaving"] = answer.get("leaving") is True or closed.startswith("was left")
    facts["failed"] = _value(answer, "failed", "") or closed
    for name in ("collective", "done", "pid"):
        if answer.get(name) is not None:
            facts[name] = _value(answer, name, 0)
    now = _value(answer, "now", {})
    if operation := _value(now, "operation", ""):
        facts["now"] = {"operation": operation, "collective": 0, "site": _value(now, "site", "")}
    return Answer(_value(answer, "state", "") or ANSWERED, facts)


# Checked values of a document. In Python, True and NaN are numbers too.


def _mapping(value: object, what: str) -> Facts:
    if not isinstance(value, dict):
        raise DamagedDump(f"{what} is not a mapping")
    return value


def _mappings(document: Facts, key: str) -> list[tuple[str, Facts]]:
    """Return the items of a mapping of mappings without the null ones."""
    parts = _value(document, key, {})
    return [
        (name, _mapping(each, f"{key}: {name}")) for name, each in parts.items() if each is not None
    ]


def _values(document: Facts, **defaults: Any) -> dict[str, Any]:
    """Return the values of some keys; see `_value`."""
    return {key: _value(document, key, default) for key, default in defaults.items()}


def _value(document: Facts, key: str, default: Any) -> Any:
    """Return a value of the default's type; the default if it is null or missing."""
    value: Any = document.get(key)
    if value is None:
        return default
    if type(default) is float and type(value) is int and abs(value) < 1 << 62:
        value = float(value)
    if type(value) is not type(default) or (
        isinstance(value, int | float) and not abs(value) < 1 << 62
    ):
        raise DamagedDump(f"{key} is {value!r:.40}, which does not fit")
    return value


NAME = re.compile(r"rank_(\d+)\.json")
"""Name of a rank's file."""


@dataclass(frozen=True, slots=True)
class DumpFolder:
    """The dumps of a folder.

    Attributes
    ----------
    path : Path
        The folder.
    dumps : tuple of Dump
        Its dumps, in the order of ranks.
    passed_over : tuple of str
        A line for each file that was not used, with the reason.
    """

    path: Path
    dumps: tuple[Dump, ...]
    passed_over: tuple[str, ...]


def read_folder(folder: Path) -> DumpFolder:
    """Read the dumps of a folder.

    Parameters
    ----------
    folder : Path
        A folder with a file for each rank, or with a folder for each job. Then the job that wrote last is read.

    Raises
    ------
    UsageError
        If the folder cannot be listed, or holds no dump that can be read.
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
        match, part = NAME.fullmatch(name), re.match(r"\.(rank_\d+)\.", name)
        if match is None:
            if part is None:
                passed_over.append(f"{name} is not a dump (those are named rank_0.json, ...)")
            elif f"{part[1]}.json" not in names:  # else an earlier dump of the rank is whole
                passed_over.append(f"{name} is half-written: its process ended before it was whole")
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
    """Return the Unix time at which the last file of a folder was written."""
    return max((each.lstat().st_mtime for each in folder.iterdir()), default=0.0)


def _in_order(name: str) -> tuple[int, str]:
    match = NAME.fullmatch(name)
    return (int(match[1]), "") if match else (1 << 62, name)


def _of_one_job(dumps: list[Dump]) -> tuple[list[Dump], list[Dump]]:
    """Return the dumps of the job that wrote last, and the dumps of other jobs.

    Two ranks are of one job if they know a communicator in common; or if they give the same name of the job,
    and their communicators have no rank in common. A rank without a communicator may belong to any job.
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
