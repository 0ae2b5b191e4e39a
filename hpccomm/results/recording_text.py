"""A recording as text: facts, operations, buckets and spans of steps; as CSV, a line a step or call.

`hpccomm show` and `hpccomm export` write it.
"""

import csv
import io
import shlex
from collections.abc import Iterator, Sequence
from itertools import groupby, repeat

import numpy as np

from hpccomm.results.facts import in_words
from hpccomm.results.recording import Recording, TrainingStep
from hpccomm.results.schema import columns
from hpccomm.results.table import TIME_FORMAT
from hpccomm.units import counted, counted_all, few

MOST_SPANS = 20
"""Lines that steps are gathered in, unless each is shown."""

MOST_GRADIENTS = 3
"""Names of gradients that a line of a bucket has."""

_COLUMNS = ("steps", "gradients", "sent", "calls", "comm", "hidden", "blocked", "skipped")
_UNITS = ("", "(B)", "(B)", "", "(ms)", "(%)", "(ms)", "")


def contents(recording: Recording) -> str:
    """Return how many steps and calls there are, in words."""
    return counted_all(step=len(recording.steps), call=recording.calls.count) or "no steps"


def text(recording: Recording, *, statistics: bool = False) -> str:
    """Return a recording as text.

    Parameters
    ----------
    recording : Recording
        What to print.
    statistics : bool
        Whether minimum, percentiles and maximum over the steps are added.
    """
    steps, whole = recording.steps, not recording.damage
    when = "before step {0.step}: " if len(steps) else ""
    lines = [*_facts(recording), *_layouts(recording)]
    lines += [f"# {when.format(note)}{note.text}" for note in recording.notes]
    if recording.calls.count and whole:
        lines += _calls(recording)
    if len(steps):
        lines += [_aligned(_COLUMNS), _aligned(_UNITS), *map(_aligned, _spans(steps))]
        lines += [_total(steps)] if whole else []
        lines += _statistics(steps) if statistics else []
    elif not recording.calls.count:
        lines.append("# no steps")
    return "".join(f"{line}\n" for line in lines)


def _facts(recording: Recording) -> Iterator[str]:
    facts = recording.facts
    status = in_words(recording.status, contents(recording), recording.host)
    yield f"# Recording {recording.name} of {recording.path}: {status}"
    yield (
        f"# Started {facts.started.strftime(TIME_FORMAT + ' %z')} by {facts.user} on "
        f"{few(facts.known_hosts, 4) or 'unknown hosts'}, {counted(recording.ranks, 'rank')}"
    )
    yield f"# Command: {shlex.join(facts.arguments)}"
    if facts.settings:
        yield "# " + ", ".join(f"{name}={value}" for name, value in facts.settings.items())


def _calls(recording: Recording) -> Iterator[str]:
    """Return a line for each operation, and the time from the first call to the last end."""
    calls, count = recording.calls, len(recording.signatures)
    numbers = np.bincount(calls["signature"], minlength=count)
    blocked = np.bincount(calls["signature"], calls["waited"], count)
    nbytes = np.array([each.nbytes for each in recording.signatures], np.int64) * numbers
    yield _aligned(("operation", "calls", "bytes", "blocked"))
    yield _aligned(("", "", "(B)", "(ms a rank)"))
    for operation in recording.operations():
        chosen = [each.operation == operation for each in recording.signatures]
        milliseconds = blocked[chosen].sum() * 1e-6 / recording.ranks
        cells = f"{numbers[chosen].sum()}", f"{nbytes[chosen].sum()}", f"{milliseconds:.3f}"
        yield _aligned((operation, *cells))
    span = int(calls["end"].max()) - int(calls["begin"].min())
    yield f"# in all: {span * 1e-9:.3f} s from the first call to the end of the last one"
    yield f"# For what costs it time: hpccomm advise {shlex.quote(str(recording.path))}"


def _layouts(recording: Recording) -> Iterator[str]:
    for since, layout in groupby(recording.buckets, lambda bucket: bucket.since):
        buckets = [*layout]
        yield f"# Buckets from step {since}: {len(buckets)}"
        for each in buckets:
            names = each.gradients.split("\n")
            shown = f"{each.dtype}, {each.nbytes} bytes: {few(names, MOST_GRADIENTS)}"
            yield f"#   {each.index}: {len(names)} of {shown}"


def spans(steps: np.ndarray, most: int) -> list[np.ndarray]:
    """Return the steps in at most `most` spans of equal length; the last one may be shorter."""
    length = -(-len(steps) // most)
    return [steps[begin : begin + length] for begin in range(0, len(steps), length)]


def _spans(steps: np.ndarray) -> Iterator[tuple[str, ...]]:
    for span in spans(steps, MOST_SPANS):
        first, last = int(span["step"][0]), int(span["step"][-1])
        counts = (f"{np.median(span[name]):.0f}" for name in ("nbytes", "wire_nbytes", "calls"))
        times = "seconds", "blocked_seconds"
        taken, blocked = (f"{np.median(span[name]) * 1e3:.3f}" for name in times)
        numbers = f"{first}" if first == last else f"{first}-{last}"
        yield numbers, *counts, taken, _hidden(span), blocked, f"{span['skipped'].sum()}"


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
    return f"{cells[0]:>15}" + "".join(f" {each:>11}" for each in cells[1:])


def csv_text(recording: Recording) -> str:
    """Return a recording as CSV: the names of `TrainingStep` and a line a step; without steps, a line a call."""
    out = io.StringIO()
    lines = csv.writer(out, lineterminator="\n")
    if len(recording.steps):
        lines.writerow(["recording", *(each.name for each in columns(TrainingStep))])
        lines.writerows([recording.name, *line] for line in recording.steps.tolist())
        return out.getvalue()
    calls = recording.calls
    lines.writerow(["recording", "rank", "operation", *calls.columns])
    named = map([each.operation for each in recording.signatures].__getitem__, calls["signature"])
    lines.writerows(
        zip(repeat(recording.name), calls.ranks(), named, *calls.columns.values(), strict=False)
    )
    return out.getvalue()
