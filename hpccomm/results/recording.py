"""A recorded program: every call of every communicator, on one clock, and the steps of its training.

The dataclasses are the columns, described once for writer, reader and documentation. `hpccomm.communicator.recording` records calls, and
`hpccomm.gradients` the steps. ``show``, ``plot``, ``advise``, ``replay``, ``export`` and ``report``
read them. Nothing here imports h5py.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from hpccomm.results.lines import StoredLines
from hpccomm.results.schema import BesideArray, Column, SectionKind, TableForm, columns


@dataclass(frozen=True, slots=True)
class TrainingStep:
    """One reduced step, as rank 0 saw it."""

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
    """Something that happened."""

    step: Annotated[int, "how many steps were reduced before it"]
    text: Annotated[str, "a sentence"]


STEPS = TableForm(
    "steps",
    columns(TrainingStep),
    (BesideArray("bucket_seconds", "<f8", (), "first_second", "timed_buckets"),),
)
"""The steps of a training, if it was logged."""


COMPLETED = "completed"
"""Status of a recording that was ended."""

PART = ".rank"
"""Behind the name of a file, and before a rank: the name of what that rank has recorded."""

STEP = "step"
"""Operation of a mark: not a call, but the end of a step of the program. It begins when it ends."""

MISSING = "the calls of these ranks are missing"
"""Begin of a note on ranks whose parts were not found."""

BLOCKING, POLLED, ASYNC, DEVICE = "blocking", "polled", "asynchronous", "device"
"""How a call waits, by the names of `hpccomm.runtime.recorder`: the first two block the program."""


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
        """The hosts that are known, each once."""
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
    """What calls have in common that differ in their times alone."""

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
        """Whether the program waits from its beginning to its end."""
        return self.mode in (BLOCKING, POLLED)

    @property
    def marks(self) -> bool:
        """Whether it is that of marks of steps, and not of calls."""
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
"""What is stored of each call, in the order in which they began on each rank."""


EVENTS = TableForm("events", (), (BesideArray("texts", "u1", (), "first_byte", "bytes"),))
"""Groups, signatures, readings of the clock, layouts of buckets, and notes: objects of JSON."""

BLOCKS = TableForm(
    "blocks",
    (Column("rank", "<i8", "whose calls they are"), Column("calls", "<i8", "how many")),
    (BesideArray("packed", "u1", (), "first_packed", "packed_bytes"),),
)
"""The calls, some thousand of one rank in each line: see `hpccomm.results.blocks`."""

RECORDING = SectionKind("recordings", "recording", (STEPS, BLOCKS, EVENTS))
"""A recording. Events are written first, and counted last by readers: calls have their signatures."""


@dataclass(frozen=True, slots=True)
class Calls:
    """The calls of all ranks, one rank's after the other's.

    Attributes
    ----------
    starts : ndarray of int64, shape (ranks + 1,)
        The first call of each rank, and behind the last one.
    columns : mapping of str to ndarray, shape (calls,)
        By the names of `CALL_COLUMNS`. They may be read when they are first asked for.
    """

    starts: NDArray[np.int64]
    columns: Mapping[str, NDArray[Any]]

    def __getitem__(self, column: str) -> NDArray[Any]:
        """Return a column, by name."""
        return self.columns[column]

    @property
    def count(self) -> int:
        """How many they are, of all ranks together."""
        return int(self.starts[-1])

    def of_rank(self, rank: int) -> slice:
        """Return where the calls of a rank are."""
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
        Its name there.
    facts : RecordingFacts
        User, hosts and versions.
    groups : tuple of RecordedGroup
        The communicators.
    signatures : tuple of CallSignature
        What calls have in common.
    calls : Calls
        The calls, and the marks of steps.
    status : str
        ``"completed"``, ``"failed: "`` and why, or without an end ``"running"``, ``"interrupted"``,
        or ``"interrupted or running"`` if both are possible.
    damage : tuple of str
        Damaged parts, which are left out.
    steps : ndarray
        The steps of a training: a line each, with the fields of `TrainingStep`.
    buckets : tuple of TrainingBucket
        Of all layouts of its gradients, oldest first.
    notes : tuple of TrainingNote
        Oldest first.
    clock : tuple of (int, int, int)
        In the part of one rank: what its clock showed, how much that is ahead of the common clock,
        and a bound of the error, in nanoseconds. The times of its calls are of its own clock.
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
        """Which ranks' calls are missing, in words; empty if none are. No step of the program is known then."""
        return next((note.text for note in self.notes if note.text.startswith(MISSING)), "")

    @property
    def host(self) -> str:
        """Where it is written, without the domain; empty if unknown."""
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
