"""The columns of a training in a recording, described once for writer, reader and documentation.

As in `hpccomm.results.schema`, the dataclasses are the columns. Nothing here imports h5py.
`hpccomm.gradients` fills them; ``show``, ``plot`` and ``export`` read them.
"""

from dataclasses import dataclass
from typing import Annotated

from hpccomm.results.schema import BesideArray, TableForm, columns


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
