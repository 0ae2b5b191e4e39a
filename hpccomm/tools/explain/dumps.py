"""Flight dumps as objects. `hpccomm.runtime.dump` writes one, a JSON file, for each rank.

The files come from broken jobs: an unreadable file becomes one line of text, and the others are read.
`hpccomm.tools.explain.faults` joins them; `explain` reads a folder.
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

_ENDED = (errors.CollectiveTimeout, errors.PeerLost, errors.CommunicatorAborted)
FOLLOWING = frozenset(
    each.__name__ for each in (*_ENDED, errors.CommunicationError, KeyboardInterrupt)
)
"""Classes of errors that say that a wait has ended."""

_REFUSED = (errors.UsageError, errors.BufferMismatch, errors.UnsupportedDtype, errors.RankMismatch)
REFUSING = frozenset(each.__name__ for each in _REFUSED)
"""Classes of errors after which the communicator usually can still be used."""

_TEXTS = ("doing", "failed", "closed", "host")
_NUMBERS = ("collective", "done", "pid")
"""Facts of an answer that diagnosis uses."""


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

    @property
    def record(self) -> Facts:
        """The call's fingerprint, as ranks exchange it."""
        return {"operation": self.operation, **self.terms}

    @property
    def open(self) -> bool:
        """Whether it was not completed."""
        return self.state != "completed"

    @property
    def refused(self) -> bool:
        """Whether it raised an error that leaves the communicator usable, so that it waits for no rank."""
        return self.state == "failed" and _class(self.error) in REFUSING

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
    now : mapping of str to Answer
        The rank's answer for each communicator, by uid.
    answers : mapping of str to mapping of int to Answer
        Answers of other ranks for which it waited, by uid and rank of the job.
    raised : DumpedError or None
        The uncaught exception that ended the rank, if there was one.
    refused : DumpedError or None
        The error of its last refused call, whether or not the program has caught it.
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
    now: Mapping[str, Answer]
    answers: Mapping[str, Mapping[int, Answer]]
    raised: DumpedError | None
    refused: DumpedError | None
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
    except RecursionError:
        raise DamagedDump("it is nested too deeply") from None
    except json.JSONDecodeError as error:
        cut = error.pos >= len(error.doc.rstrip()) - 1 or "Unterminated" in error.msg
        what = "it is cut off" if cut else "it is damaged"
        raise DamagedDump(f"{what} (line {error.lineno}: {error.msg})") from None
    except ValueError as error:  # such as an integer of 5,000 digits
        raise DamagedDump(f"it is damaged ({error})") from None


def _dump(document: object, path: Path) -> Dump:
    whole = _mapping(document, "the document")
    entries = _value(whole, "entries", list, None)
    rank = _value(whole, "rank", int, -1)
    if entries is None:
        raise DamagedDump("it has no list of entries")
    if rank < 0:
        raise DamagedDump("it does not say whose it is")
    groups = {
        uid: Membership(uid, _text(each, "desc") or uid, _ranks(each.get("ranks"), uid))
        for uid, each in _mappings(whole, "pg_config")
    }
    for group in groups.values():
        if rank not in group.members:
            raise DamagedDump(f"rank {rank} is not a rank of its communicator {group.name[:40]!r}")
    return Dump(
        file=path,
        rank=rank,
        world_size=max(_value(whole, "world_size", int, 0), rank + 1),
        host=_text(whole, "host"),
        pid=_value(whole, "pid", int, 0),
        reason=_text(whole, "reason"),
        time=_value(whole, "time", float, 0.0),
        groups=groups,
        calls=tuple(_call(each, number) for number, each in enumerate(entries)),
        now={uid: Answer(ANSWERED, _facts(each)) for uid, each in _mappings(whole, "now")},
        answers={
            uid: {
                rank: _answer(_mapping(answered[str(at)], "an answer"))
                for at, rank in enumerate(groups[uid].members)
                if answered.get(str(at)) is not None
            }
            for uid, answered in _mappings(whole, "answers")
            if uid in groups
        },
        raised=_error(whole, "raised"),
        refused=_error(whole, "refused"),
        ended=_text(whole, "ended"),
        job=_text(whole, "job"),
    )


def _error(document: Facts, key: str) -> DumpedError | None:
    each = _value(document, key, dict, None)
    if each is None:
        return None
    return DumpedError(_text(each, "error"), _text(each, "site"), _value(each, "ago", float, 0.0))


def _class(text: str) -> str:
    """Return the class with which the text of an error begins."""
    return text.partition(":")[0].strip()


def _call(entry: object, number: int) -> RecordedCall:
    each = _mapping(entry, f"entry {number}")
    group = each.get("process_group")
    if not (isinstance(group, list) and group and isinstance(group[0], str)):
        raise DamagedDump(f"entry {number} names no communicator")
    frames = [each for each in _value(each, "frames", list, []) if isinstance(each, dict)]
    duration = _value(each, "duration_ms", float, None)
    # Ranks may differ in how they wait.
    terms = {**_value(each, "terms", dict, {})}
    if terms.pop("mode", "") == "asynchronous":
        terms["async_op"] = True
    return RecordedCall(
        uid=group[0],
        number=0 if each.get("is_p2p") else _value(each, "collective_seq_id", int, 0),
        operation=_text(each, "profiling_name").rpartition(":")[2] or "a call",
        terms=terms,
        began=_value(each, "time_created_ns", float, 0.0) / 1e9,
        seconds=None if duration is None else duration / 1e3,
        state=_text(each, "state") or "started",
        error=_text(each, "error"),
        site=site(frames[0]) if frames else "",
    )


def site(frame: Mapping[str, Any]) -> str:
    """Return a frame in words: ``step(), train.py line 41``."""
    name, file, line = (frame.get(key, "") for key in ("name", "filename", "line"))
    where = f"{PurePath(str(file)).name} line {line}"
    return where if name in ("", "<module>") else f"{name}(), {where}"


def _answer(answer: Facts) -> Answer:
    facts = _value(answer, "facts", dict, answer)
    return Answer(_text(answer, "state") or ANSWERED, _facts(facts))


def _facts(answer: Facts) -> Facts:
    """Return the facts of an answer that diagnosis uses."""
    facts: dict[str, Any] = {name: _text(answer, name) for name in _TEXTS}
    closed = facts.pop("closed")
    facts["leaving"] = answer.get("leaving") is True or closed.startswith("was left")
    facts["failed"] = facts["failed"] or closed
    numbers = {name: _value(answer, name, int, None) for name in _NUMBERS}
    facts |= {name: number for name, number in numbers.items() if number is not None}
    now = _value(answer, "now", dict, {})
    if operation := _text(now, "operation"):
        facts["now"] = {"operation": operation, "collective": 0, "site": _text(now, "site")}
    return facts


# Checked values of a document. In Python, True and NaN are numbers too.


def _mapping(value: object, what: str) -> Facts:
    if not isinstance(value, dict):
        raise DamagedDump(f"{what} is not a mapping")
    return value


def _mappings(document: Facts, key: str) -> list[tuple[str, Facts]]:
    """Return the items of a mapping of mappings without the null ones."""
    parts = _value(document, key, dict, {})
    return [
        (name, _mapping(each, f"{key}: {name}")) for name, each in parts.items() if each is not None
    ]


def _value(document: Facts, key: str, kind: type, default: Any) -> Any:
    """Return a value of the given kind, or the default if it is null or missing."""
    value: Any = document.get(key)
    if kind is float and type(value) is int and abs(value) < 1 << 62:
        value = float(value)
    if value is None:
        return default
    fits = type(value) is kind
    if not fits or (kind in (int, float) and not abs(value) < 1 << 62):
        raise DamagedDump(f"{key} is {value!r:.40}, which does not fit")
    return value


def _text(document: Facts, key: str) -> str:
    text: str = _value(document, key, str, "")
    return text


def _ranks(value: object, uid: str) -> tuple[int, ...]:
    """Return the members of a communicator."""
    if not isinstance(value, list) or not all(type(each) is int and each >= 0 for each in value):
        raise DamagedDump(f"the ranks of communicator {uid[:40]} are not a list of ranks")
    return tuple(value)


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
        match = NAME.fullmatch(name)
        if match is None:
            whole = re.match(r"\.rank_\d+", name)
            if whole and f"{whole[0][1:]}.json" in names:
                continue  # an earlier dump of the rank is whole
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
