"""A recorded program: every call of every communicator, on one clock.

The dataclasses say what is stored. `hpccomm.communicator.recording` makes recordings, and
``advise``, ``replay``, ``export`` and ``report`` read them. Nothing here imports h5py.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from hpccomm.results.schema import Column

STEP = "step"
"""Operation of a mark: not a call, but the end of a step of the program. It begins when it ends."""

BLOCKING, POLLED, ASYNC, DEVICE = "blocking", "polled", "asynchronous", "device"
"""How a call waits, by the names of `hpccomm.runtime.recorder`: the first two block the program."""


@dataclass(frozen=True, slots=True)
class RecordingFacts:
    """User, hosts and versions of a recorded program."""

    started: Annotated[datetime, "ISO 8601 with the offset from UTC"]
    user: Annotated[str, "login name"]
    arguments: Annotated[tuple[str, ...], "the command line, program first"]
    hosts: Annotated[tuple[str, ...], "where each rank ran, without the domain, in order of rank"]
    unix_ns: Annotated[int, "Unix time at which the common clock shows 0", "ns"]
    clock_error_ns: Annotated[tuple[int, ...], "bound of the error of each rank's clock", "ns"]
    versions: Annotated[Mapping[str, str], "version of each library"] = field(default_factory=dict)
    machine: Annotated[Mapping[str, str], "what the nodes are, by the name of each fact"] = field(
        default_factory=dict
    )

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return len(self.hosts)


@dataclass(frozen=True, slots=True)
class RecordedGroup:
    """A communicator of the program.

    Attributes
    ----------
    uid : str
        The same on all its ranks, and of no other communicator.
    name : str
        Its name.
    ranks : tuple of int
        The ranks of the program that are its ranks 0, 1, ...; -1 for one that is not known.
    """

    uid: str
    name: str
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CallSignature:
    """What calls have in common that differ in their times alone.

    Attributes
    ----------
    operation : str
        Such as ``"all_reduce"``, ``"send"``, ``"batch"``; `STEP` of a mark.
    group : int
        Number of the communicator among `Recording.groups`; -1 of a mark.
    nbytes : int
        Bytes of this rank's larger array.
    mode : str
        How it waits: `BLOCKING`, `POLLED`, `ASYNC` or `DEVICE`.
    values : mapping of str to plain data
        As `hpccomm.contracts.fingerprint.CallFingerprint.values`: dtype, count, op, root, algorithm, path of a
        collective; ``dst``, ``src`` (ranks of the group, or None) and ``tag`` of a message; ``calls`` of a batch.
    site : str
        Where in the program, such as ``"step(), train.py line 41"``; empty if unknown.
    """

    operation: str
    group: int
    nbytes: int
    mode: str
    values: Mapping[str, Any] = field(default_factory=dict, hash=False)
    site: str = ""

    @property
    def blocks(self) -> bool:
        """Whether the program waits from its beginning to its end."""
        return self.mode in (BLOCKING, POLLED)


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
        ``"completed"``, ``"failed: "`` and why, or of a program that was killed ``"interrupted"``.
    damage : tuple of str
        Damaged parts, which are left out.
    """

    path: Path
    name: str
    facts: RecordingFacts
    groups: tuple[RecordedGroup, ...]
    signatures: tuple[CallSignature, ...]
    calls: Calls
    status: str = "completed"
    damage: tuple[str, ...] = ()

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return self.facts.ranks

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
