"""What a results file holds of a training's gradients, described once for writer, reader and documentation.

As in `hpccomm.results.schema`, the dataclasses are the columns. Nothing here imports h5py.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated

import numpy as np

TRAININGS = "trainings"
"""The group that holds one group a training."""

COMPLETED = "completed"
"""Status of a training whose log was closed."""


@dataclass(frozen=True, slots=True)
class TrainingFacts:
    """Who trains, where, and with what."""

    started: Annotated[datetime, "ISO 8601 with the offset from UTC"]
    user: Annotated[str, "login name"]
    host: Annotated[str, "where rank 0 runs, without the domain"]
    arguments: Annotated[tuple[str, ...], "the command line, program first"]
    ranks: Annotated[int, "number of ranks"]
    settings: Annotated[Mapping[str, str], "settings of the gradients, one attribute each"]


@dataclass(frozen=True, slots=True)
class TrainingStep:
    """One reduced step, as rank 0 saw it."""

    step: Annotated[int, "its number, from 0"]
    finished: Annotated[float, "when it ended, since the gradients' object was made", "s"]
    nbytes: Annotated[int, "gradients that were reduced, with the padding between them", "B"]
    wire_nbytes: Annotated[int, "what this rank gave to collectives for them", "B"]
    calls: Annotated[int, "collectives of buckets"]
    seconds: Annotated[float, "in communication: the sum over buckets", "s"]
    hidden_seconds: Annotated[float, "the part of it in which this rank did not wait", "s"]
    blocked_seconds: Annotated[float, "in which this rank waited, for late ranks too", "s"]
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
        Who, where and with what.
    steps : ndarray
        A line for each step, with the fields of ``TrainingStep``.
    bucket_seconds : ndarray
        Float64 ``(sum of steps["buckets"],)``: the seconds of each bucket, step after step.
    buckets : tuple of TrainingBucket
        Of all layouts, oldest first.
    notes : tuple of TrainingNote
        Oldest first.
    status : str
        ``"completed"``, ``"failed: "`` and why, or for a training without an end ``"running"``,
        ``"interrupted"``, or ``"interrupted or running"`` where that cannot be seen.
    """

    path: Path
    name: str
    facts: TrainingFacts
    steps: np.ndarray
    bucket_seconds: np.ndarray
    buckets: tuple[TrainingBucket, ...]
    notes: tuple[TrainingNote, ...]
    status: str
