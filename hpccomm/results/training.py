"""The columns of a logged training, described once for writer, reader and documentation.

As in `hpccomm.results.schema`, the dataclasses are the columns. Nothing here imports h5py.
`hpccomm.gradients` fills them; ``show``, ``plot`` and ``export`` read them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Annotated

import numpy as np

from hpccomm.files.refusals import os_errors_as
from hpccomm.results.lines import StoredLines
from hpccomm.results.schema import BesideArray, SectionKind, TableForm, columns

COMPLETED = "completed"
"""Status of a training whose log was closed."""


@dataclass(frozen=True, slots=True)
class TrainingFacts:
    """User, host, settings and versions of a training."""

    started: Annotated[datetime, "ISO 8601 with the offset from UTC"]
    user: Annotated[str, "login name"]
    host: Annotated[str, "where rank 0 runs, without the domain"]
    arguments: Annotated[tuple[str, ...], "the command line, program first"]
    ranks: Annotated[int, "number of ranks"]
    settings: Annotated[Mapping[str, str], "settings of the gradients"]


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
"""The steps of a training."""

EVENTS = TableForm("events", (), (BesideArray("texts", "u1", (), "first_byte", "bytes"),))
"""Layouts of buckets, and notes, in order: objects of JSON."""

TRAINING = SectionKind("trainings", "training", (STEPS, EVENTS))
"""A training."""


@dataclass(frozen=True, slots=True)
class Training:
    """The gradients of one training.

    Attributes
    ----------
    path : Path
        The file.
    name : str
        Its name there.
    facts : TrainingFacts
        User, host, settings and versions.
    steps : ndarray
        A line for each step, with the fields of ``TrainingStep``.
    buckets : tuple of TrainingBucket
        Of all layouts, oldest first.
    notes : tuple of TrainingNote
        Oldest first.
    status : str
        ``"completed"``, ``"failed: "`` and why, or for a training without an end ``"running"``,
        ``"interrupted"``, or ``"interrupted or running"`` if both are possible.
    damage : tuple of str
        Damaged parts of its steps, events and end, which are left out.
    """

    path: Path
    name: str
    facts: TrainingFacts
    steps: np.ndarray
    buckets: tuple[TrainingBucket, ...]
    notes: tuple[TrainingNote, ...]
    status: str
    damage: tuple[str, ...]
    _lines: StoredLines = field(repr=False, compare=False)

    def bucket_seconds(self, index: int) -> np.ndarray:
        """Read the seconds of each bucket of step `index` from the file, float64 ``(buckets,)``.

        Raises
        ------
        ResultsError
            If they are damaged, or the file cannot be read any more.
        """
        with os_errors_as(self.path, "read"):
            return self._lines.part(self._lines.numbers[index], "bucket_seconds")
