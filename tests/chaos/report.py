"""The report of many cases: a table, and the shortfalls with the command that repeats each."""

from collections import Counter, defaultdict
from dataclasses import dataclass

from .cases import KINDS, OPERATIONS, Case
from .judging import SHORTFALLS, Verdict
from .running import Seen

SHOWN = 12
"""Lines of a job's error output that the report shows."""


@dataclass(frozen=True)
class Ran:
    """A case that was run; without verdict it could not be, for the reason `skipped`."""

    case: Case
    seen: Seen | None
    verdict: Verdict | None
    skipped: str = ""


def table(runs: list[Ran]) -> str:
    """Return how many cases of each fault and operation there were, and how many fell short."""
    cells: dict[tuple[str, str], list[bool]] = defaultdict(list)
    for each in runs:
        if each.verdict is not None:
            cells[each.case.kind, each.case.operation].append(not each.verdict.shortfalls)
    width = max(map(len, KINDS))
    columns = [o for o in OPERATIONS if any(o == operation for _, operation in cells)]
    lines = [" " * width + "".join(f" {o[:9]:>9}" for o in columns)]
    for kind in KINDS:
        row = [cells.get((kind, operation), []) for operation in columns]
        if any(row):
            shown = (f"{sum(each)}/{len(each)}" if each else "" for each in row)
            lines.append(f"{kind:<{width}}" + "".join(f" {text:>9}" for text in shown))
    return "\n".join(lines)


def summary(runs: list[Ran], command: str) -> str:
    """Return the figures, and for each class of shortfall one command that repeats a case of it."""
    judged = [each for each in runs if each.verdict is not None]
    named = [r.verdict.named for r in judged if r.verdict and r.verdict.named is not None]
    right = sum(1 for r in judged if r.verdict and not r.verdict.shortfalls)
    lines = [f"{right} of {len(judged)} cases as promised"]
    if named:
        share = 100 * sum(named) / len(named)
        lines.append(f"named rightly: {sum(named)} of {len(named)} ({share:.0f} %)")
    uncounted = Counter(r.case.kind for r in judged if r.verdict and r.verdict.named is None)
    if uncounted:
        by_kind = ", ".join(f"{count} {kind}" for kind, count in sorted(uncounted.items()))
        lines.append(f"not counted, since nobody had to be named: {by_kind}")
    counts: Counter[str] = Counter()
    example: dict[str, Case] = {}
    for ran in judged:
        for name in dict.fromkeys(name for name, _ in ran.verdict.shortfalls if ran.verdict):
            counts[name] += 1
            example.setdefault(name, ran.case)
    for name in SHORTFALLS:
        again = f"   {command} --seeds {example[name].seed}" if counts[name] else ""
        lines.append(f"{counts[name]:5}  {name}{again}")
    reasons = Counter(each.skipped for each in runs if each.verdict is None)
    lines += [f"{count:5}  skipped: {reason}" for reason, count in reasons.items()]
    return "\n".join(lines)


def shortfall(ran: Ran, command: str) -> str:
    """Return what fell short in one case, what its ranks told, and how to repeat it."""
    assert ran.verdict is not None
    assert ran.seen is not None
    lines = [f"case {ran.case}"]
    lines += [f"  {name}: {what}" for name, what in ran.verdict.shortfalls]
    lines.append(f"  status {ran.seen.status}, {ran.seen.seconds:.1f} s after the fault")
    for rank, events in sorted(ran.seen.events.items()):
        told = [e for e in events if e["event"] == "outcome"]
        words = f"{told[0]['error']} {told[0]['ranks']} {told[0]['text'][:300]}" if told else ""
        path = " ".join(dict.fromkeys(event["event"] for event in events))
        lines.append(f"  rank {rank}: {path}: {words}")
    said = [line for line in ran.seen.stderr.splitlines() if line.strip()]
    kept = [*said[:SHOWN], *(["..."] if len(said) > 2 * SHOWN else []), *said[SHOWN:][-SHOWN:]]
    lines += [f"    | {line[:220]}" for line in kept]
    lines.append(f"  again: {command} --seeds {ran.case.seed}")
    return "\n".join(lines)
