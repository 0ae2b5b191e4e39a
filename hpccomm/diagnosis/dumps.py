"""Flight dumps: one JSON file a rank, as the recorder writes them."""

import ast
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any

from hpccomm import errors

_ENDED = (errors.CollectiveTimeout, errors.PeerLost, errors.CommunicatorAborted)
FOLLOWING = frozenset(
    each.__name__ for each in (*_ENDED, errors.CommunicationError, KeyboardInterrupt)
)
"""Errors that say that a wait has ended."""

_REFUSED = (errors.UsageError, errors.BufferMismatch, errors.UnsupportedDtype, errors.RankMismatch)
REFUSING = frozenset(each.__name__ for each in _REFUSED)
"""Errors after which the communicator can go on, as a rule."""


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """One call in the record of one rank.

    Attributes
    ----------
    uid : str
        The communicator.
    number : int
        Which collective of the communicator, from 1, the same on all ranks; 0 for a message.
    operation : str
        Such as ``"all_reduce"``.
    backend : str
        What carried it out, such as ``"mpi"``.
    terms : mapping
        What all ranks must ask for alike, by field.
    began : float
        Unix time in seconds, by the clock of the rank's host.
    seconds : float or None
        How long it took; None while under way.
    state : str
        ``"scheduled"``, ``"started"``, ``"completed"`` or ``"failed"``.
    error : str
        What ended it; empty if nothing did.
    site : str
        Where in the program, such as ``"step(), train.py line 41"``; empty if not known.
    frames : sequence of mapping
        The same for PyTorch's analyser: ``name``, ``filename``, ``line``, the innermost first.
    nbytes : int
        Bytes of this rank's array, 0 if not known.
    timeout : float or None
        Its deadline in seconds.
    """

    uid: str
    number: int
    operation: str
    backend: str = "mpi"
    terms: Mapping[str, Any] = field(default_factory=dict, hash=False)
    began: float = 0.0
    seconds: float | None = None
    state: str = "completed"
    error: str = ""
    site: str = ""
    frames: Sequence[Mapping[str, Any]] = ()
    nbytes: int = 0
    timeout: float | None = None

    @property
    def record(self) -> Mapping[str, Any]:
        """What it asks for, as ranks tell each other."""
        return {"operation": self.operation, **self.terms}

    @property
    def open(self) -> bool:
        """Whether it was not completed."""
        return self.state != "completed"

    @property
    def refused(self) -> bool:
        """Whether it has raised what lets the communicator go on, so that it waits for nobody."""
        return self.state == "failed" and _class(self.error) in REFUSING

    def waited(self, until: float) -> float:
        """Return the seconds that it took, or has taken at the Unix time `until`."""
        return max(0.0, until - self.began) if self.seconds is None else self.seconds


@dataclass(frozen=True, slots=True)
class Membership:
    """A communicator, as one of its ranks knows it.

    Attributes
    ----------
    uid : str
        The same on all its ranks, and of no other communicator.
    name : str
        For people.
    members : tuple of int
        Its ranks, as ranks of the job.
    """

    uid: str
    name: str
    members: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LastSeen:
    """Where a rank was in one communicator when it was asked.

    Attributes
    ----------
    state : str
        ``"answered"``, or ``"gone"``, ``"stopped"``, ``"silent"`` where it could not.
    begun, done : int or None
        Numbers of the last collective that it began and that it ended.
    doing : str
        Where its main thread was, outside hpccomm.
    operation, site : str
        The call of this communicator that it was in, and where in the program.
    failed : str
        Why it takes part no more; empty if it does.
    left : bool
        Whether its program had come to its end.
    host : str
        Its host.
    pid : int
        Its process.
    """

    state: str = "answered"
    begun: int | None = None
    done: int | None = None
    doing: str = ""
    operation: str = ""
    site: str = ""
    failed: str = ""
    left: bool = False
    host: str = ""
    pid: int = 0


@dataclass(frozen=True, slots=True)
class DumpedError:
    """An error that a rank has raised.

    Attributes
    ----------
    text : str
        Its class and its words.
    site : str
        Where in the program.
    ago : float
        How many seconds before it was written down.
    """

    text: str
    site: str
    ago: float

    @property
    def follows(self) -> bool:
        """Whether it says that a wait has ended, so that its cause is elsewhere."""
        return _class(self.text) in FOLLOWING

    @property
    def line(self) -> str:
        """Its first line."""
        return self.text.strip().split("\n", maxsplit=1)[0]


@dataclass(frozen=True, slots=True)
class Dump:
    """What one rank has left.

    Attributes
    ----------
    file : Path
        Its file.
    rank, world_size : int
        The rank, and the number of ranks of the job.
    host : str
        Its host.
    pid : int
        Its process.
    reason : str
        Why it was written.
    time : float
        When, as Unix time in seconds.
    groups : mapping of str to Membership
        Its communicators, by uid.
    calls : tuple of RecordedCall
        The oldest first.
    now : mapping of str to LastSeen
        Where it was in each communicator, by uid.
    answers : mapping of str to mapping of int to LastSeen
        What other ranks answered when it waited for them, by uid and rank in the communicator.
    raised : DumpedError or None
        The exception that nobody caught, if one has ended the rank.
    ended : str
        Its last words, where it has ended by itself or by a signal.
    refused : DumpedError or None
        What its last refused call raised, whether or not the program has caught it.
    entries : sequence of mapping
        The calls as they stand in the file.
    version : str
        Of the layout.
    job : str
        Tells jobs apart, as a rule.
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
    now: Mapping[str, LastSeen]
    answers: Mapping[str, Mapping[int, LastSeen]]
    raised: DumpedError | None = None
    refused: DumpedError | None = None
    ended: str = ""
    entries: Sequence[Mapping[str, Any]] = ()
    version: str = ""
    job: str = ""


class Damaged(Exception):
    """A file is not what a recorder writes."""


def parse(content: bytes, path: Path) -> Dump:
    """Return the dump that a file holds, or raise what is wrong with it."""
    if not content.strip():
        raise Damaged("it is empty")
    try:
        document = json.loads(content)
    except RecursionError:
        raise Damaged("it is nested too deeply") from None
    except UnicodeDecodeError:
        raise Damaged("it is no text") from None
    except json.JSONDecodeError as error:
        cut = error.pos >= len(error.doc.rstrip()) - 1 or "Unterminated" in error.msg
        what = "it is cut off" if cut else "it is damaged"
        raise Damaged(f"{what} (line {error.lineno}: {error.msg})") from None
    except ValueError as error:  # such as an integer of 5,000 digits
        raise Damaged(f"it is damaged ({error})") from None
    try:
        return _dump(_mapping(document, "the document"), path)
    except RecursionError:
        raise Damaged("it is nested too deeply") from None


def _dump(document: Mapping[str, Any], path: Path) -> Dump:
    groups = {
        uid: Membership(
            uid,
            _text(each, "desc") or _text(each, "name") or uid,
            _ranks(each.get("ranks"), uid),
        )
        for uid, each in _mappings(document, "pg_config")
    }
    entries = document.get("entries")
    if not isinstance(entries, list):
        raise Damaged("it has no list of entries")
    begun = {uid: _status(each) for uid, each in _mappings(document, "pg_status")}
    now = {uid: _seen(each) for uid, each in _mappings(document, "now")}
    answers = {
        uid: {_rank_of(rank): _answer(each) for rank, each in _mappings(answered, "")}
        for uid, answered in _mappings(document, "answers")
    }
    calls = tuple(_call(each, number) for number, each in enumerate(entries))
    for uid, (first, last) in begun.items():
        if uid not in now:
            now[uid] = LastSeen(begun=first, done=last)
    rank = _whole(document, "rank")
    if rank is None or rank < 0:
        raise Damaged("it does not say whose it is")
    for group in groups.values():
        if rank not in group.members:
            raise Damaged(f"rank {rank} is no rank of its communicator {group.name[:40]!r}")
    return Dump(
        file=path,
        rank=rank,
        world_size=max(_whole(document, "world_size") or 0, rank + 1),
        host=_text(document, "host"),
        pid=_whole(document, "pid") or 0,
        reason=_text(document, "reason"),
        time=_number(document, "time") or 0.0,
        groups=groups,
        calls=calls,
        now=now,
        answers=answers,
        raised=_error(document, "raised"),
        refused=_error(document, "refused"),
        ended=_text(document, "ended"),
        entries=entries,
        version=_text(document, "version"),
        job=_text(document, "job"),
    )


def _error(document: Mapping[str, Any], key: str) -> DumpedError | None:
    if document.get(key) is None:
        return None
    each = _mapping(document[key], key)
    return DumpedError(_text(each, "error"), _text(each, "site"), _number(each, "ago") or 0.0)


def _class(text: str) -> str:
    """Return the class that the text of an error begins with."""
    return text.partition(":")[0].strip()


def _call(entry: object, number: int) -> RecordedCall:
    each = _mapping(entry, f"entry {number}")
    group = each.get("process_group")
    if not (isinstance(group, list) and group and isinstance(group[0], str)):
        raise Damaged(f"entry {number} names no communicator")
    backend, _, operation = _text(each, "profiling_name").rpartition(":")
    frames = [frame for frame in each.get("frames") or [] if isinstance(frame, dict)]
    duration = _number(each, "duration_ms")
    timeout = _number(each, "timeout_ms")
    return RecordedCall(
        uid=group[0],
        number=0 if each.get("is_p2p") else _whole(each, "collective_seq_id") or 0,
        operation=operation or "a call",
        backend=backend or "mpi",
        terms=_asked(_mapping(each.get("terms") or {}, f"the terms of entry {number}")),
        began=(_number(each, "time_created_ns") or 0.0) / 1e9,
        seconds=None if duration is None else duration / 1e3,
        state=_text(each, "state") or "started",
        error=_text(each, "error"),
        site=site(frames[0]) if frames else "",
        frames=frames,
        nbytes=_whole(each, "nbytes") or 0,
        timeout=None if timeout is None else timeout / 1e3,
    )


def _asked(terms: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what ranks must ask for alike; how a rank waits for it is its own affair."""
    asked = {name: value for name, value in terms.items() if name != "mode"}
    if terms.get("mode") == "asynchronous":
        asked["async_op"] = True
    return asked


def site(frame: Mapping[str, Any]) -> str:
    """Return a frame in words: ``step(), train.py line 41``."""
    name, file, line = (frame.get(key, "") for key in ("name", "filename", "line"))
    where = f"{PurePath(str(file)).name} line {line}"
    return where if name in ("", "<module>") else f"{name}(), {where}"


def _answer(answer: Mapping[str, Any]) -> LastSeen:
    facts = answer.get("facts", answer)
    return _seen(_mapping(facts, "an answer"), _text(answer, "state") or "answered")


def _seen(facts: Mapping[str, Any], state: str = "answered") -> LastSeen:
    now = facts.get("now")
    call = now if isinstance(now, dict) else {}
    return LastSeen(
        state=state,
        begun=_whole(facts, "collective"),
        done=_whole(facts, "done"),
        doing=_text(facts, "doing"),
        operation=_text(call, "operation"),
        site=_text(call, "site"),
        failed=_text(facts, "failed") or _text(facts, "closed"),
        left=facts.get("leaving") is True or _text(facts, "closed").startswith("was left"),
        host=_text(facts, "host"),
        pid=_whole(facts, "pid") or 0,
    )


def _status(status: Mapping[str, Any]) -> tuple[int | None, int | None]:
    begun = [_whole(status, f"last_{what}_collective") for what in ("enqueued", "started")]
    known = [each for each in begun if each is not None]
    return max(known, default=None), _whole(status, "last_completed_collective")


# What stands in a document. Python takes True for a number, and NaN for one as well.


def _mapping(value: object, what: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise Damaged(f"{what} is not a mapping")
    return value


def _mappings(document: Mapping[str, Any], key: str) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the parts of a mapping of mappings; those that are null are left out."""
    found = _mapping(document.get(key) or {}, key) if key else document
    return [
        (name, _mapping(each, f"{key or 'answers'}: {name}"))
        for name, each in found.items()
        if each is not None
    ]


def _text(document: Mapping[str, Any], key: str) -> str:
    value = document.get(key)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise Damaged(f"{key} is {value!r:.40}, not text")
    return value


def _number(document: Mapping[str, Any], key: str) -> float | None:
    value = document.get(key)
    if value is None:
        return None
    if value == math.inf:  # such as a deadline of a call that has none
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e300:
        raise Damaged(f"{key} is {value!r:.40}, not a number")
    return float(value)


def _whole(document: Mapping[str, Any], key: str) -> int | None:
    value = document.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not abs(value) < 1 << 62:
        raise Damaged(f"{key} is {value!r:.40}, not a whole number")
    return value


def _rank_of(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise Damaged(f"{text!r:.40} in its answers is no rank")
    return int(text)


def _ranks(value: object, uid: str) -> tuple[int, ...]:
    """Return the members of a communicator; PyTorch writes them as the text of a list."""
    if isinstance(value, str) and len(value) < 1 << 24:
        try:
            value = ast.literal_eval(value)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            value = None
    if not isinstance(value, list) or not all(type(each) is int and each >= 0 for each in value):
        raise Damaged(f"the ranks of communicator {uid[:40]} are not a list of ranks")
    return tuple(value)
