"""Diagnoses as lines of text."""

import textwrap
from collections.abc import Iterator, Sequence

from hpccomm.doctor.judge import Diagnosis

WIDTH = 110


def lines(found: Sequence[Diagnosis], nodes: int) -> Iterator[str]:
    """Yield the report: faults first, then what was skipped and why, then what is well."""
    for status in ("fail", "warn"):
        for each in found:
            if each.status == status:
                yield from _fault(each, nodes)
    skipped: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for each in found:
        if each.status == "skipped":
            skipped.setdefault((each.reason, each.nodes), []).append(each.rule.id)
    for (reason, of), ids in skipped.items():
        yield from _wrapped(f"{'skipped':8} {', '.join(ids)}{_where(of, nodes)}: {reason}")
    well: dict[str, list[str]] = {}
    for each in found:
        if each.status == "ok" and len(each.nodes) == nodes:
            well.setdefault(each.rule.area, []).append(each.rule.id.partition(".")[2])
    for area, names in well.items():
        yield from _wrapped(f"{'ok':8} {area}: {', '.join(names)}")


def _fault(each: Diagnosis, nodes: int) -> Iterator[str]:
    yield f"{each.status.upper():8} {each.rule.id}{_where(each.nodes, nodes)}: {each.rule.question}"
    for sentence in each.evidence:
        yield from _wrapped(sentence, "         ")
    yield from _wrapped(f"remedy: {each.rule.remedy}", "         ")
    yield f"         page: {each.rule.page}"


def _where(names: Sequence[str], nodes: int) -> str:
    if nodes == 1 or len(names) == nodes:
        return ""
    shown = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
    return f" on {len(names)} of {nodes} nodes ({shown})"


def _wrapped(text: str, indent: str = "") -> list[str]:
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=indent,
        subsequent_indent=indent or " " * 9,
        break_long_words=False,
        break_on_hyphens=False,
    )
