"""A recorded program: all calls of all communicators on one clock, the steps of its training, and who waits for whom.

The dataclasses are the columns, described once for writer, reader and documentation. Nothing here imports h5py.

The calls of all ranks that are one collective are matched, and so are the two ends of a message. A call's ``wait`` is the
last arrival less its own arrival. The rest of the call is its ``transfer``. These are the wait states of Scalasca's
patterns: "Wait at N x N", "Late Broadcast" (all wait for the root), "Early Reduce" (only the root waits for all), "Late
Sender" and "Late Receiver". The waiting is charged to the rank that arrived last, as the short-term cost of its delay
(D. Böhme and others, "Identifying the root causes of wait states in large-scale parallel applications",
ACM Transactions on Parallel Computing 3, 2016).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from hpccomm.contracts.collectives import CALLS
from hpccomm.results.lines import StoredLines
from hpccomm.results.schema import BesideArray, Column, SectionKind, TableForm, columns
from hpccomm.units import counted


@dataclass(frozen=True, slots=True)
class TrainingStep:
    """One reduced step, as rank 0 measured it."""

    step: Annotated[int, "its number, from 0"]
    finished: Annotated[float, "when it ended, since the gradients' object was made", "s"]
    nbytes: Annotated[int, "gradients that were reduced, with the padding between them", "B"]
    wire_nbytes: Annotated[int, "what this rank gave to collectives for them", "B"]
    calls: Annotated[int, "collectives of buckets"]
    seconds: Annotated[float, "in communication: the sum over buckets", "s"]
    hidden_seconds: Annotated[float, "its part without this rank's waiting", "s"]
    blocked_seconds: Annotated[float, "in which this rank waited, also for late ranks", "s"]
    with_gradients: Annotated[int, "parameters that had a gradient on this rank"]
    skipped: Annotated[bool, "1 if it has no results, because of NaN, infinities or an error"]
    buckets: Annotated[int, "buckets that were reduced one by one; 0 if all were at once"]


@dataclass(frozen=True, slots=True)
class TrainingBucket:
    """One bucket of a layout of the gradients."""

    since: Annotated[int, "first step with this layout"]
    index: Annotated[int, "number of the bucket"]
    dtype: Annotated[str, "of its gradients, by NumPy's name"]
    nbytes: Annotated[int, "bytes of gradients and padding", "B"]
    gradients: Annotated[str, "names of the gradients, one a line"]


@dataclass(frozen=True, slots=True)
class TrainingNote:
    """A note about an event, such as a change of a setting."""

    step: Annotated[int, "how many steps were reduced before it"]
    text: Annotated[str, "a sentence"]


STEPS = TableForm(
    "steps",
    columns(TrainingStep),
    (BesideArray("bucket_seconds", "<f8", (), "first_second", "timed_buckets"),),
)
"""The steps of a training, if it was logged."""


COMPLETED = "completed"
"""Status of a recording that was ended normally."""

PART = ".rank"
"""The name of a rank's part is the file's name, this text, and the rank."""

STEP = "step"
"""The operation of a mark. A mark is not a call, but the end of a step of the program. It takes no time."""

MISSING = "the calls of these ranks are missing"
"""The beginning of the note about ranks with missing parts."""

BLOCKING, POLLED, ASYNC, DEVICE = "blocking", "polled", "asynchronous", "device"
"""How a call waits, by the names of `hpccomm.runtime.recorder`. The first two block the program."""


@dataclass(frozen=True, slots=True)
class RecordingFacts:
    """User, hosts, settings and versions of a recorded program."""

    started: Annotated[datetime, "ISO 8601 with the offset from UTC"]
    user: Annotated[str, "login name"]
    arguments: Annotated[tuple[str, ...], "the command line, program first"]
    hosts: Annotated[
        tuple[str, ...],
        "where each rank ran, without the domain, in order of rank; empty if unknown",
    ]
    unix_ns: Annotated[int, "Unix time at which the common clock shows 0", "ns"] = 0
    clock_error_ns: Annotated[tuple[int, ...], "bound of the error of each rank's clock", "ns"] = ()
    versions: Annotated[Mapping[str, str], "version of each library"] = field(default_factory=dict)
    machine: Annotated[Mapping[str, str], "what the nodes are, by the name of each fact"] = field(
        default_factory=dict
    )
    settings: Annotated[Mapping[str, str], "of the gradients, if their steps were logged"] = field(
        default_factory=dict
    )

    @property
    def known_hosts(self) -> list[str]:
        """The known hosts, each once."""
        return [host for host in dict.fromkeys(self.hosts) if host]


@dataclass(frozen=True, slots=True)
class RecordedGroup:
    """A communicator of the program."""

    uid: Annotated[str, "the same on all its ranks, and of no other communicator"]
    name: Annotated[str, "its name"]
    ranks: Annotated[
        tuple[int, ...], "the program's ranks that are its ranks 0, 1, ...; -1 if not known"
    ]


@dataclass(frozen=True, slots=True)
class CallSignature:
    """The common values of calls that differ only in their times."""

    operation: Annotated[str, "such as all_reduce, send, batch; step of a mark"]
    group: Annotated[int, "number of the communicator; -1 of a mark"]
    nbytes: Annotated[int, "this rank's larger array", "B"]
    mode: Annotated[str, "how it waits: blocking, polled, asynchronous or device"]
    values: Annotated[
        Mapping[str, Any],
        "dtype, count, op, root, algorithm, path of a collective; dst, src (ranks of the group, or null) and tag of "
        "a message; calls of a batch",
    ] = field(default_factory=dict, hash=False)
    site: Annotated[str, "where in the program; empty if unknown"] = ""

    @property
    def blocks(self) -> bool:
        """Whether the program waits for the whole call."""
        return self.mode in (BLOCKING, POLLED)

    @property
    def marks(self) -> bool:
        """Whether it belongs to marks of steps, and not to calls."""
        return self.operation == STEP


CALL_COLUMNS = (
    Column("signature", "<i4", "number of its signature"),
    Column("number", "<i8", "its number among the collectives of its communicator; 0 of a message"),
    Column("begin", "<i8", "when the program made it, by the common clock", "ns"),
    Column("end", "<i8", "when it was complete", "ns"),
    Column("asked", "<i8", "asynchronous: when the program began to wait for it; 0 if it did not", "ns"),
    Column("waited", "<i8", "how long the program was blocked by it", "ns"),
    Column("buffer", "<i8", "the memory of its array: equal for calls on the same; 0 without"),
    Column("stream", "<i8", "the stream that it was put on; 0 on the host"),
    Column("failed", "u1", "1 if it raised"),
)  # fmt: skip
"""The columns of the calls. Each rank's calls are in the order in which they began."""


EVENTS = TableForm("events", (), (BesideArray("texts", "u1", (), "first_byte", "bytes"),))
"""Groups, signatures, readings of the clock, layouts of buckets, and notes: objects of JSON."""

BLOCKS = TableForm(
    "blocks",
    (Column("rank", "<i8", "whose calls they are"), Column("calls", "<i8", "how many")),
    (BesideArray("packed", "u1", (), "first_packed", "packed_bytes"),),
)
"""The calls. Each line has thousands of calls of one rank: see `hpccomm.results.blocks`."""

RECORDING = SectionKind("recordings", "recording", (STEPS, BLOCKS, EVENTS))
"""A recording. Writers add events before calls, and readers count events after calls. So each call has its signature."""


@dataclass(frozen=True, slots=True)
class Calls:
    """The calls of all ranks, one rank's after the other's.

    Attributes
    ----------
    starts : ndarray of int64, shape (ranks + 1,)
        The first call of each rank, and the end of the last rank's calls.
    columns : mapping of str to ndarray, shape (calls,)
        The columns, by the names of `CALL_COLUMNS`. Each may be read on first use.
    """

    starts: NDArray[np.int64]
    columns: Mapping[str, NDArray[Any]]

    def __getitem__(self, column: str) -> NDArray[Any]:
        """Return a column, by name."""
        return self.columns[column]

    @property
    def count(self) -> int:
        """Number of calls of all ranks."""
        return int(self.starts[-1])

    def of_rank(self, rank: int) -> slice:
        """Return the slice of a rank's calls."""
        return slice(int(self.starts[rank]), int(self.starts[rank + 1]))

    def ranks(self) -> NDArray[np.int32]:
        """Return the rank of each call."""
        count = np.diff(self.starts)
        return np.repeat(np.arange(len(count), dtype=np.int32), count)


@dataclass(frozen=True, slots=True)
class Recording:
    """The recording of a program.

    Attributes
    ----------
    path : Path
        The file.
    name : str
        Its name in the file.
    facts : RecordingFacts
        User, hosts and versions.
    groups : tuple of RecordedGroup
        The communicators.
    signatures : tuple of CallSignature
        The signatures that calls refer to by number.
    calls : Calls
        The calls, and the marks of steps.
    status : str
        ``"completed"``, or ``"failed: "`` and the reason. Without an end, ``"running"``, ``"interrupted"``, or
        ``"interrupted or running"`` if both are possible.
    damage : tuple of str
        Damaged parts. They are left out.
    steps : ndarray
        The steps of a training, one line for each, with the fields of `TrainingStep`.
    buckets : tuple of TrainingBucket
        The buckets of all layouts of its gradients, oldest first.
    notes : tuple of TrainingNote
        The notes, oldest first.
    clock : tuple of (int, int, int)
        In the part of one rank, its readings: the time of its clock, how far this is ahead of the common clock, and a bound
        of the error, in nanoseconds. Calls in such a part have times of the rank's own clock.
    """

    path: Path
    name: str
    facts: RecordingFacts
    groups: tuple[RecordedGroup, ...]
    signatures: tuple[CallSignature, ...]
    calls: Calls
    status: str = COMPLETED
    damage: tuple[str, ...] = ()
    steps: NDArray[Any] = field(
        default_factory=lambda: np.empty(0, [(each.name, each.kind) for each in STEPS.own])
    )
    buckets: tuple[TrainingBucket, ...] = ()
    notes: tuple[TrainingNote, ...] = ()
    clock: tuple[tuple[int, int, int], ...] = ()
    _lines: StoredLines | None = field(default=None, repr=False, compare=False)

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return len(self.facts.hosts)

    @property
    def lacks(self) -> str:
        """A text with the ranks whose calls are missing. Empty if there are none. Steps cannot be found without them."""
        return next((note.text for note in self.notes if note.text.startswith(MISSING)), "")

    @property
    def host(self) -> str:
        """The host that writes it, without the domain. Empty if unknown."""
        end = self.path.name.rpartition(PART)[2]
        rank = int(end) if end.isdecimal() else 0
        return "".join(self.facts.hosts[rank : rank + 1])

    def bucket_seconds(self, index: int) -> NDArray[np.float64]:
        """Read the seconds of each bucket of step `index` from the file, float64 ``(buckets,)``.

        Raises
        ------
        ResultsError
            If they are damaged, or the file cannot be read any more.
        """
        assert self._lines is not None, "it has steps"
        return self._lines.part(self._lines.numbers[index], "bucket_seconds")

    def of_signature(self, attribute: str) -> NDArray[Any]:
        """Return an attribute of the signature of each call."""
        each = np.array([getattr(one, attribute) for one in self.signatures])
        chosen: NDArray[Any] = each[self.calls["signature"]]
        return chosen

    def operations(self) -> Iterator[str]:
        """Yield the operations that the program called, in the order of first use."""
        yield from dict.fromkeys(
            each.operation for each in self.signatures if each.operation != STEP
        )


Indices = NDArray[np.int64]

_NUMBERS = 1 << 40
"""A number that is larger than the number of collectives of any communicator."""


@dataclass(frozen=True, slots=True)
class MatchedCollectives:
    """The collectives of a recording, ordered by communicator and number.

    Attributes
    ----------
    calls : ndarray of int64, shape (calls of collectives,)
        Their calls, ordered by collective and rank.
    starts : ndarray of int64, shape (collectives + 1,)
        The place in `calls` at which each collective begins, and the end of the last one.
    last : ndarray of int64, shape (collectives,)
        The call of the rank that arrived last.
    """

    calls: Indices
    starts: Indices
    last: Indices

    def __len__(self) -> int:
        """Return the number of collectives."""
        return len(self.last)

    @property
    def sizes(self) -> Indices:
        """The number of recorded calls of each collective."""
        return np.diff(self.starts)

    def per_call(self, values: NDArray[Any]) -> NDArray[Any]:
        """Repeat the value of each collective for each of its calls."""
        return np.repeat(values, self.sizes)


def collectives(recording: Recording) -> MatchedCollectives:
    """Match the calls of each collective. They have the same communicator and the same number.

    If the program was killed, some ranks may lack a collective. It then has only the calls of the others.
    """
    calls = recording.calls
    numbered = np.flatnonzero(calls["number"] > 0)
    key = recording.of_signature("group")[numbered] * _NUMBERS + calls["number"][numbered]
    order = np.argsort(key, kind="stable")
    key, chosen = key[order], numbered[order]
    firsts = np.flatnonzero(np.diff(key, prepend=-1))
    starts = np.append(firsts, len(key))
    begin = calls["begin"][chosen]
    arrival = np.maximum.reduceat(begin, firsts)
    latest = np.flatnonzero(begin == np.repeat(arrival, np.diff(starts)))
    return MatchedCollectives(chosen, starts, chosen[latest[np.searchsorted(latest, firsts)]])


@dataclass(frozen=True, slots=True)
class MatchedMessages:
    """The calls that are the two ends of a message.

    Attributes
    ----------
    sends, receives : ndarray of int64, shape (messages,)
        The call that sent each message, and the call that received it, ordered by receiver.
    """

    sends: Indices
    receives: Indices


def messages(recording: Recording) -> MatchedMessages:
    """Match the send and the receive of each message.

    In one communicator and with one tag, the k-th send from one rank to another belongs to the k-th such receive (MPI's
    rule of order). For a receive from any rank or of any tag, the recording does not say which message it got. It is
    matched if only one sender and tag is possible. If not, all messages to its rank in that communicator stay unmatched.
    """
    ends = [list(_ends(recording, each)) for each in recording.signatures]
    signature = recording.calls["signature"]
    numbers = np.array([len(each) for each in ends], np.int64)
    first = np.cumsum(numbers) - numbers
    having = np.flatnonzero(numbers[signature] * (recording.calls["failed"] == 0))
    count = numbers[signature[having]]
    call = np.repeat(having, count)
    within = np.arange(len(call)) - np.repeat(np.cumsum(count) - count, count)
    table = np.array([end for each in ends for end in each], np.int64).reshape(-1, 4)
    sends, channel, peer, kind = table[first[signature[call]] + within].T
    rank = recording.calls.ranks()[call]
    source, target = np.where(sends, rank, peer), np.where(sends, peer, rank)
    ranks = recording.ranks - _UNKNOWN
    inbox = channel * ranks + target - _UNKNOWN
    for box in np.unique(inbox[(sends == 0) & (peer == _ANY)]):
        here = inbox == box
        possible = np.unique(np.stack([source, kind])[:, here & (sends == 1)], axis=1)
        if possible.shape[1] == 1:
            source[here], kind[here] = possible
        else:
            sends[here] = -1
    key = (inbox * ranks + source - _UNKNOWN) * (int(kind.max(initial=0)) + 2) + kind + 1
    _, key = np.unique(key, return_inverse=True)
    sent, received = _ordered(key, sends == 1), _ordered(key, sends == 0)
    _, left, right = np.intersect1d(sent[0], received[0], assume_unique=True, return_indices=True)
    return MatchedMessages(call[sent[1][left]], call[received[1][right]])


_ANY, _UNKNOWN = -1, -2


def _ends(recording: Recording, signature: CallSignature) -> Iterator[tuple[int, int, int, int]]:
    """Yield for each end of a message in a call: whether it sends, the communicator, the other rank, the kind of message."""
    each: Mapping[str, Any]
    if signature.operation == "probe":  # which leaves the message where it is
        return
    for each in signature.values.get("calls", (signature.values,)):
        objects = signature.operation.endswith("_object")
        for end in ("dst", "src"):
            peer = each.get(end)
            if peer is not None:
                ranks = recording.groups[signature.group].ranks
                other = ranks[peer] if ranks[peer] >= 0 else _UNKNOWN
                yield end == "dst", signature.group, other, 2 * (each.get("tag") or 0) + objects
    # Of mpi4py's receives, one from no rank (MPI.PROC_NULL) has neither sender nor tag.
    receives = signature.operation in ("recv", "recv_object") and "src" not in signature.values
    if receives and ("mpi" not in signature.values or "tag" in signature.values):
        yield False, signature.group, _ANY, -1


def _ordered(key: Indices, chosen: NDArray[np.bool_]) -> tuple[Indices, Indices]:
    """Number the chosen ends: the k-th send and the k-th receive of a key get the same number. Return numbers and places."""
    places = np.flatnonzero(chosen)
    places = places[np.argsort(key[places], kind="stable")]
    firsts = np.flatnonzero(np.diff(key[places], prepend=-1))
    order = np.arange(len(places)) - np.repeat(firsts, np.diff(firsts, append=len(places)))
    return key[places] * (len(key) + 1) + order, places


BINS = 60
"""Number of columns of a heat map."""

MOST_RANKS = 32
"""The most ranks in a printed table."""


@dataclass(frozen=True, slots=True)
class CallWaits:
    """The call that each call waits for, and how long. All times are in ns.

    Attributes
    ----------
    awaited : ndarray of int64, shape (calls,)
        The call for whose arrival it waited. If there is none, this is the call itself.
    wait : ndarray of int64, shape (calls,)
        The arrival of that call less its own arrival.
    since : ndarray of int64, shape (calls,)
        When the program began to be blocked by the call.
    blocked : ndarray of int64, shape (calls,)
        How long the program was blocked before the awaited arrival.
    collectives : MatchedCollectives
        The matched collectives.
    messages : MatchedMessages
        The matched messages.
    """

    awaited: Indices
    wait: Indices
    since: Indices
    blocked: Indices
    collectives: MatchedCollectives
    messages: MatchedMessages


def waits(recording: Recording) -> CallWaits:
    """Return what each call waits for.

    If a call ended before the arrival of another one, it did not wait for it. But if the difference is less than the error
    of the two clocks, the call waited until its end.
    """
    calls = recording.calls
    begin, end = calls["begin"], calls["end"]
    matched, pairs = collectives(recording), messages(recording)
    awaited = np.arange(len(begin))
    awaited[matched.calls] = _awaited(recording, matched)
    # The two ends of a message wait for each other. A call with several messages waits for the latest.
    ends = np.concatenate([pairs.sends, pairs.receives])
    others = np.concatenate([pairs.receives, pairs.sends])
    order = np.argsort(begin[others], kind="stable")
    ends, others = ends[order], others[order]
    later = begin[others] > begin[ends]
    awaited[ends[later]] = others[later]  # of several for one call, the last is kept
    arrival = begin[awaited]
    errors = recording.facts.clock_error_ns or [0] * recording.ranks
    error = np.array(errors, np.int64)[calls.ranks()]
    waiting = (arrival > begin) & (arrival <= end + error + error[awaited])
    awaited[~waiting] = np.flatnonzero(~waiting)
    until = np.minimum(np.where(waiting, arrival, begin), end)
    since = np.where(calls["asked"] > 0, calls["asked"], begin)
    early = np.clip(until - since, 0, calls["waited"])
    return CallWaits(awaited, until - begin, since, early, matched, pairs)


def apart(recording: Recording) -> Recording:
    """Return a recording in which calls that were awaited together are awaited one by one.

    mpi4py tells when all of them have ended. The one whose other ranks came last ended then, and the others are taken to
    have ended as long after their own last arrival. They are awaited in that order.
    """
    calls = recording.calls
    own = np.array(["mpi" in one.values for one in recording.signatures], bool)
    if not own.any():
        return recording
    together = np.flatnonzero((calls["asked"] > 0) & own[calls["signature"]])
    arrival = calls["begin"][waits(recording).awaited[together]]
    asked, end = calls["asked"][together], calls["end"][together]
    keys = np.stack([calls.ranks()[together], asked])
    group = np.unique(keys, axis=1, return_inverse=True)[1].ravel()
    last = np.zeros(len(together), np.int64)
    np.maximum.at(last, group, arrival)
    ended = np.minimum(end, arrival + np.maximum(end - last[group], 0))
    order = np.lexsort([ended, group])
    again = np.diff(group[order]) == 0
    asked[order[1:][again]] = np.maximum(asked[order[1:]], ended[order[:-1]])[again]
    columns = {name: calls[name].copy() for name in calls.columns}
    columns["asked"][together], columns["end"][together] = asked, ended
    columns["waited"][together] = np.maximum(ended - asked, 0)
    return replace(recording, calls=Calls(calls.starts, columns))


def _awaited(recording: Recording, matched: MatchedCollectives) -> Indices:
    """Return the call that each call of `matched` waits for."""
    awaited: Indices = matched.per_call(matched.last)
    root, from_root = roots(recording)
    if not (root >= 0).any():
        return awaited
    signature = recording.calls["signature"][matched.calls]
    at_root = recording.calls.ranks()[matched.calls] == root[signature]
    of_root = matched.last.copy()  # this stays if the root's call is not recorded
    of_root[matched.per_call(np.arange(len(matched)))[at_root]] = matched.calls[at_root]
    for_all = (root[signature] < 0) | (at_root & ~from_root[signature])
    return np.where(for_all, awaited, matched.per_call(of_root))


def roots(recording: Recording) -> tuple[Indices, NDArray[np.bool_]]:
    """Return the root in each signature, or -1; and whether all data comes from the root."""
    root = np.full(len(recording.signatures), -1)
    from_root = np.zeros(len(root), bool)
    for at, each in enumerate(recording.signatures):
        what = CALLS.get(each.operation)
        if what is not None and what.rooted and "root" in each.values:
            root[at] = recording.groups[each.group].ranks[each.values["root"]]
            from_root[at] = what.root_sends
    return root, from_root


@dataclass(frozen=True, slots=True)
class Lateness:
    """How long each rank kept others waiting. Arrays have one item for each rank. Times are in ns.

    Attributes
    ----------
    collectives : ndarray of int64
        Number of its collectives with two ranks or more.
    last : ndarray of int64
        Number of these in which it arrived last.
    kept_waiting : ndarray of int64
        The sum of the times for which other programs were blocked until it arrived, in collectives and messages.
    waited : ndarray of int64
        The time for which its own program was blocked until others arrived.
    edges : ndarray of int64, shape (bins + 1,)
        The edges of the bins of ``map``, by the common clock.
    map : ndarray of int64, shape (ranks, bins)
        ``kept_waiting``, divided into bins by the time of the rank's arrival.
    """

    collectives: NDArray[np.int64]
    last: NDArray[np.int64]
    kept_waiting: NDArray[np.int64]
    waited: NDArray[np.int64]
    edges: NDArray[np.int64]
    map: NDArray[np.int64]

    def __str__(self) -> str:
        """Return a table. The rank for which others waited longest comes first."""
        lines = [_ROW.format("rank", "kept others waiting", "was last", "waited itself")]
        worst = np.argsort(-self.kept_waiting, kind="stable").tolist()
        for rank in worst[:MOST_RANKS]:
            times = [f"{each[rank] / 1e6:.3f} ms" for each in (self.kept_waiting, self.waited)]
            last = f"{self.last[rank]} of {self.collectives[rank]}"
            lines.append(_ROW.format(rank, times[0], last, times[1]))
        if (more := len(worst) - MOST_RANKS) > 0:
            lines.append(f"and {counted(more, 'rank')} more")
        return "\n".join(lines)


_ROW = "{:>6}  {:>20}  {:>20}  {:>16}"


def lateness(recording: Recording, waiting: CallWaits | None = None) -> Lateness:
    """Return how long each rank kept others waiting.

    Parameters
    ----------
    recording : Recording
        The recording.
    waiting : CallWaits, optional
        The result of `waits`. By default, it is computed.
    """
    waiting = waiting or waits(recording)
    rank, begin = recording.calls.ranks(), recording.calls["begin"]
    matched, ranks = waiting.collectives, recording.ranks
    several = matched.sizes > 1
    edges = np.linspace(*span(recording), BINS + 1).astype(np.int64)
    blocked = np.flatnonzero(waiting.blocked)
    cause, cost = waiting.awaited[blocked], waiting.blocked[blocked]
    place = np.clip(np.searchsorted(edges, begin[cause], "right") - 1, 0, BINS - 1)
    heat = _summed(rank[cause] * BINS + place, cost, ranks * BINS).reshape(ranks, BINS)
    return Lateness(
        np.bincount(rank[matched.calls[matched.per_call(several)]], minlength=ranks),
        np.bincount(rank[matched.last[several]], minlength=ranks),
        heat.sum(axis=1),
        _summed(rank[blocked], cost, ranks),
        edges,
        heat,
    )


def span(recording: Recording) -> tuple[int, int]:
    """Return when the first call began and the last one ended, in ns of the common clock."""
    if not recording.calls.starts[-1]:
        return 0, 0
    return int(recording.calls["begin"].min()), int(recording.calls["end"].max())


def _summed(place: NDArray[Any], values: Indices, size: int) -> Indices:
    """Return the sums of values by place. They are exact up to 2**53 ns, which are 104 days."""
    return np.bincount(place, values, minlength=size).astype(np.int64)
