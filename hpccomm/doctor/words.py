"""Diagnoses as lines of text, which `hpccomm doctor` prints."""

import collections
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hpccomm.doctor.judge import MISSING, Diagnosis, at
from hpccomm.units import counted, few, grouped, wrapped

_SHOWN = (
    "host.kernel",
    "host.cpu",
    "host.container",
    "cpu.online",
    "mpi.library",
    "gpus.driver",
    "gpus.devices.*.name",
    "ranks.*.nccl",
)


def head(trees: Mapping[str, Any]) -> Iterator[str]:
    """Yield the checked facts: each once, with the nodes that differ."""
    ranks = sum(len(tree.get("ranks", "?")) for tree in trees.values())
    yield f"{counted(ranks, 'rank')} on {counted(len(trees), 'node')}: {few(trees, 4)}"
    for path in _SHOWN:
        alike: dict[str, list[str]] = {}
        for node, tree in trees.items():
            if (value := at(tree, path)) not in (MISSING, []):
                items = value if isinstance(value, list) else [value]
                alike.setdefault(", ".join(dict.fromkeys(map(str, items))), []).append(node)
        for value, nodes in alike.items():
            where = f" ({few(nodes, 4)})" if len(alike) > 1 else ""
            yield f"  {path.replace('.*', ''):14} {value}{where}"


def lines(diagnoses: Sequence[Diagnosis], trees: Mapping[str, Any]) -> Iterator[str]:
    """Yield the report: faults first, then notes, skipped checks with reasons, and passed ones."""
    nodes = len(trees)
    for status in ("fail", "warn", "note"):
        for each in diagnoses:
            if each.status == status:
                yield from _fault(each, nodes)
    sizes = collections.Counter(each.rule.area for each in diagnoses)
    skipped: dict[tuple[str, tuple[str, ...]], dict[str, list[str]]] = {}
    for each in diagnoses:
        if each.status == "skipped":
            area, _, name = each.rule.id.partition(".")
            skipped.setdefault((each.reason, each.nodes), {}).setdefault(area, []).append(name)
    for (reason, of), areas in skipped.items():
        ids = "; ".join(
            f"{area}: {', '.join(names) if len(names) < sizes[area] else f'all {len(names)}'}"
            for area, names in areas.items()
        )
        yield from wrapped(f"{'skipped':8} {reason}{_where(of, nodes)} ({ids})", 0, 9)
    well = grouped(
        (each.rule.area, each.rule.id.partition(".")[2])
        for each in diagnoses
        if each.status == "ok" and len(each.nodes) == nodes
    )
    for area, names in well.items():
        yield from wrapped(f"{'ok':8} {area}: {', '.join(names)}", 0, 9)


def _fault(each: Diagnosis, nodes: int) -> Iterator[str]:
    yield f"{each.status.upper():8} {each.rule.id}{_where(each.nodes, nodes)}: {each.rule.question}"
    for sentence in each.evidence:
        yield from wrapped(sentence, 9, 9)
    yield from wrapped(f"remedy: {each.rule.remedy}", 9, 9)
    yield f"         page: {each.rule.page}"


def _where(names: Sequence[str], nodes: int) -> str:
    return "" if len(names) == nodes else f" on {len(names)} of {nodes} nodes ({few(names, 4)})"
