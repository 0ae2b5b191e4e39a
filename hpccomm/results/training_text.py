"""A stored training as text: facts, buckets and spans of steps; as CSV, a line a step.

`hpccomm show` and `hpccomm export` write it.
"""

import csv
import io
import shlex
from collections.abc import Iterator, Sequence

import numpy as np

from hpccomm.results.liveness import in_words
from hpccomm.results.schema import columns
from hpccomm.results.table import TIME_FORMAT
from hpccomm.results.training import Training, TrainingStep
from hpccomm.units import counted

MOST_SPANS = 20
"""Lines that steps are gathered in, unless each is shown."""

MOST_GRADIENTS = 3
"""Names of gradients that a line of a bucket has."""

_COLUMNS = ("steps", "gradients", "sent", "calls", "comm", "hidden", "blocked", "skipped")
_UNITS = ("", "(B)", "(B)", "", "(ms)", "(%)", "(ms)", "")


def text(training: Training, *, statistics: bool = False) -> str:
    """Return a training as text.

    Parameters
    ----------
    training : Training
        What to print.
    statistics : bool
        Whether minimum, percentiles and maximum over the steps are added.
    """
    lines = [*_facts(training), *_layouts(training)]
    lines += [f"# before step {note.step}: {note.text}" for note in training.notes]
    if not len(training.steps):
        return "".join(f"{line}\n" for line in [*lines, "# no steps"])
    lines += [_aligned(_COLUMNS), _aligned(_UNITS)]
    lines += [_aligned(each) for each in _spans(training.steps)]
    lines += [] if training.damage else [_total(training.steps)]
    if statistics:
        lines += _statistics(training.steps)
    return "".join(f"{line}\n" for line in lines)


def _facts(training: Training) -> Iterator[str]:
    facts = training.facts
    status = in_words(training.status, counted(len(training.steps), "step"), facts.host)
    yield f"# Training {training.name} of {training.path}: {status}"
    yield (
        f"# Started {facts.started.strftime(TIME_FORMAT + ' %z')} by {facts.user} on {facts.host}, "
        f"{counted(facts.ranks, 'rank')}"
    )
    yield f"# Command: {shlex.join(facts.arguments)}"
    yield "# " + ", ".join(f"{name}={value}" for name, value in facts.settings.items())


def _layouts(training: Training) -> Iterator[str]:
    since = None
    for bucket in training.buckets:
        if bucket.since != since:
            since = bucket.since
            count = sum(each.since == since for each in training.buckets)
            yield f"# Buckets from step {since}: {count}"
        names = bucket.gradients.split("\n")
        shown = ", ".join(names[:MOST_GRADIENTS]) + (" ..." if len(names) > MOST_GRADIENTS else "")
        yield f"#   {bucket.index}: {len(names)} of {bucket.dtype}, {bucket.nbytes} bytes: {shown}"


def spans(steps: np.ndarray, most: int) -> list[np.ndarray]:
    """Return the steps in at most `most` spans of equal length; the last one may be shorter."""
    length = -(-len(steps) // most)
    return [steps[begin : begin + length] for begin in range(0, len(steps), length)]


def _spans(steps: np.ndarray) -> Iterator[tuple[str, ...]]:
    for span in spans(steps, MOST_SPANS):
        first, last = int(span["step"][0]), int(span["step"][-1])
        yield (
            f"{first}" if first == last else f"{first}-{last}",
            f"{np.median(span['nbytes']):.0f}",
            f"{np.median(span['wire_nbytes']):.0f}",
            f"{np.median(span['calls']):.0f}",
            f"{np.median(span['seconds']) * 1e3:.3f}",
            _hidden(span),
            f"{np.median(span['blocked_seconds']) * 1e3:.3f}",
            f"{span['skipped'].sum()}",
        )


def _hidden(steps: np.ndarray) -> str:
    """Return how much of the communication of steps was hidden, in percent."""
    seconds = steps["seconds"].sum()
    return f"{100 * steps['hidden_seconds'].sum() / seconds:.0f}" if seconds else "-"


def _total(steps: np.ndarray) -> str:
    return (
        f"# in all: {len(steps)} steps in {steps['finished'][-1]:.3f} s, {int(steps['skipped'].sum())} skipped; "
        f"{steps['wire_nbytes'].sum():.0f} bytes sent for {steps['nbytes'].sum():.0f} of gradients; "
        f"{steps['seconds'].sum():.3f} s in communication, {_hidden(steps)} % of it hidden; "
        f"{steps['blocked_seconds'].sum():.3f} s blocked"
    )


def _statistics(steps: np.ndarray) -> Iterator[str]:
    for name, meaning in (("seconds", "comm"), ("blocked_seconds", "blocked")):
        low, median, high, most = np.percentile(steps[name], (0, 50, 95, 100)) * 1e3
        yield (
            f"# {meaning} a step: minimum {low:.3f}, median {median:.3f}, 95th percentile {high:.3f}, "
            f"maximum {most:.3f} ms"
        )


def _aligned(cells: Sequence[str]) -> str:
    return f"{cells[0]:>15}" + "".join(f"{each:>12}" for each in cells[1:])


def csv_text(training: Training) -> str:
    """Return a training as CSV: a line of `TrainingStep`'s names, and a line a step."""
    out = io.StringIO()
    lines = csv.writer(out, lineterminator="\n")
    lines.writerow(["training", *(each.name for each in columns(TrainingStep))])
    lines.writerows([training.name, *line] for line in training.steps.tolist())
    return out.getvalue()
