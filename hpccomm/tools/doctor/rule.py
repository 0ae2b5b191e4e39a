"""A rule: the facts that it reads, and a function that finds a fault in them.

The modules of `hpccomm.tools.doctor.rules` make rules. Their words are in ``rules.tsv`` beside this
module. `judge` applies them to the trees of nodes; the diagnoses become lines of text. All functions are pure.

`hpccomm.tools.doctor.doctor` calls it.
"""

import collections
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any, Literal

from hpccomm.tools.doctor.reading import rows
from hpccomm.units import counted, counted_all, few, grouped, wrapped

Severity = Literal["note", "warn", "fail"]
Facts = Mapping[str, Any]
List = Sequence[Facts]
Texts = Sequence[str]
Faults = Iterator[str]
"""The result of a rule's function: the evidence of each fault, as a sentence."""

GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Rule:
    """One check, as data: its words, a line of ``rules.tsv``; the facts that it reads; a function that finds faults.

    Attributes
    ----------
    id : str
        ``AREA.NAME``.
    severity : {"note", "warn", "fail"}
        The severity of a fault. A note is about something that stock systems have, and that matters to some programs.
    over : {"node", "nodes"}
        What it judges: each node, or the job's nodes together. Then each fact is a dict from the nodes' names, and
        the rule is skipped if the job has one node.
    question : str
        The question it answers, such as ``May enough memory be locked?``.
    remedy : str
        The remedy of a fault.
    page : str
        The page of the documentation that says more.
    reads : tuple of str
        Paths of facts in a node's tree, such as ``limits.memlock.soft``. A star stands for each
        item of a list or dict (``gpus.devices.*.ecc``); its fact is the list of those that exist. The
        fact of a path that ends with ``?`` is None if it is missing. A rule is skipped if any other
        fact is missing.
    fails : callable
        Takes the facts in that order; returns a sentence of evidence for each fault, none if all is well. Pure.
    """

    id: str
    severity: Severity
    over: Literal["node", "nodes"]
    question: str
    remedy: str
    page: str
    reads: tuple[str, ...]
    fails: Callable[..., Iterable[str]]

    @property
    def area(self) -> str:
        """The rule's area: the first part of its id."""
        return self.id.partition(".")[0]

    @property
    def name(self) -> str:
        """The rest of its id."""
        return self.id.partition(".")[2]

    @property
    def sources(self) -> set[str]:
        """The sources that the rule needs: the first parts of its paths."""
        return {path.partition(".")[0] for path in self.reads}


def rules(checks: Mapping[str, tuple[Any, ...]]) -> tuple[Rule, ...]:
    """Return rules from a mapping of each id to its function and its paths. Their words are in ``rules.tsv``."""
    words = {row["id"]: row for row in rows("rules.tsv")}
    return tuple(
        Rule(**words[name], reads=tuple(reads), fails=fails)
        for name, (fails, *reads) in checks.items()
    )


Tree = Mapping[str, Any]

Status = Literal["fail", "warn", "note", "skipped", "ok"]
"""The result of a rule; the worst first."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The finding of a rule.

    Attributes
    ----------
    rule : Rule
        The rule.
    status : {"fail", "warn", "note", "skipped", "ok"}
        The rule's result.
    evidence : tuple of str
        A sentence for each fault.
    reason : str
        The reason for which the rule was skipped.
    nodes : tuple of str
        The names of the nodes with this result.
    """

    rule: Rule
    status: Status
    evidence: tuple[str, ...] = ()
    reason: str = ""
    nodes: tuple[str, ...] = ()


def judge(trees: Mapping[str, Tree], rules: Iterable[Rule]) -> list[Diagnosis]:
    """Apply rules to the trees of nodes, by name. Nodes with the same result share a diagnosis."""
    diagnoses = []
    for rule in rules:
        if rule.over == "nodes":
            found = Diagnosis(rule, "skipped", reason="the job has one node")
            found = _applied(rule, trees) if len(trees) > 1 else found
            diagnoses.append(replace(found, nodes=tuple(trees)))
            continue
        alike = grouped((_applied(rule, {node: tree}), node) for node, tree in trees.items())
        diagnoses += [replace(result, nodes=tuple(nodes)) for result, nodes in alike.items()]
    return diagnoses


def against(
    trees: Mapping[str, Tree], golden: Tree, name: str, rules: Iterable[Rule]
) -> list[Diagnosis]:
    """Compare each node with a sound node `golden`, from the file `name`, by the rules of the area ``alike``."""
    diagnoses = []
    for rule in (each for each in rules if each.area == "alike"):
        question = f"{rule.question[:-1]} as {name}?"
        own = replace(rule, id=f"against.{rule.name}", question=question)
        for node, tree in trees.items():
            (found,) = judge({name: golden, node: tree}, [own])
            diagnoses.append(replace(found, nodes=(node,)))
    return diagnoses


def _applied(rule: Rule, trees: Mapping[str, Tree]) -> Diagnosis:
    """Apply a rule to a tree or, if the rule compares nodes, to several trees."""
    values, several = [], rule.over == "nodes"
    for path in rule.reads:
        each = {node: at(tree, path.rstrip("?")) for node, tree in trees.items()}
        lacking = [node for node, value in each.items() if value is MISSING]
        some = path.endswith("?") and not (several and len(lacking) == len(trees))
        if lacking and not some:
            return Diagnosis(rule, "skipped", reason=missing(trees[lacking[0]], path))
        each |= dict.fromkeys(lacking)
        values.append(each if several else next(iter(each.values())))
    evidence = tuple(rule.fails(*values))
    return Diagnosis(rule, rule.severity if evidence else "ok", evidence)


MISSING = object()
"""Stands for a missing fact of a tree."""


def at(tree: Tree, path: str) -> Any:
    """Return the fact at a path, or `MISSING`; if the path has stars, the list of the facts that exist."""
    found = list(_reached(tree, path.split(".")))
    return found if found and "*" in path else next(iter(found), MISSING)


def _reached(value: Any, parts: list[str]) -> Iterator[Any]:
    match parts, value:
        case [], _:
            yield value
        case ["*", *rest], dict() | list():
            for item in value.values() if isinstance(value, dict) else value:
                yield from _reached(item, rest)
        case [first, *rest], dict() if first in value:
            yield from _reached(value[first], rest)


def shown(value: Any) -> str:
    """Return a fact as text: the different items of a list, and large numbers of bytes in GiB."""
    if isinstance(value, list):
        return ", ".join(dict.fromkeys(map(shown, value)))
    if isinstance(value, int) and abs(value) >= GIB:
        return f"{value / GIB:.1f} GiB"
    return "none" if value is None else str(value)


def missing(tree: Tree, path: str) -> str:
    """Return why a tree lacks a fact: the reason that its source, or its first rank, has for it or a part around it."""
    source, *parts = path.rstrip("?").split(".")
    if source not in tree:
        return str(tree.get("unread", {}).get(source, f"{source} was not looked at"))
    found = tree[source]
    if isinstance(found, list):  # of ranks, which a star leads into
        found, parts = next(iter(found), {}), parts[1:]
    unread = found.get("unread", {})
    for end in range(len(parts), -1, -1):
        for fact, reason in unread.items():
            if fnmatchcase(fact, ".".join(parts[:end])):
                return str(reason)
    return f"there is no {'.'.join(part for part in (source, *parts) if part != '*')} here"


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
    """Yield the report's head: the ranks and nodes, and some facts, each value once with its nodes if nodes differ."""
    ranks = sum(len(tree.get("ranks", "?")) for tree in trees.values())
    yield f"{counted(ranks, 'rank')} on {counted(len(trees), 'node')}: {few(trees, 4)}"
    for path in _SHOWN:
        found = ((node, at(tree, path)) for node, tree in trees.items())
        alike = grouped((shown(value), node) for node, value in found if value not in (MISSING, []))
        for value, nodes in alike.items():
            where = f" ({few(nodes, 4)})" if len(alike) > 1 else ""
            yield f"  {path.replace('.*', ''):14} {value}{where}"


def lines(diagnoses: Sequence[Diagnosis], trees: Mapping[str, Any]) -> Iterator[str]:
    """Yield the report: faults, notes, skipped checks with the reasons, passed checks, and the faults' numbers."""
    nodes = len(trees)
    for status in ("fail", "warn", "note"):
        for each in diagnoses:
            if each.status == status:
                yield from _fault(each, nodes)
    sizes = collections.Counter(each.rule.area for each in diagnoses)
    skipped = grouped(
        ((each.reason, each.nodes), each.rule) for each in diagnoses if each.status == "skipped"
    )
    for (reason, of), its in skipped.items():
        ids = "; ".join(
            f"{area}: {', '.join(names) if len(names) < sizes[area] else f'all {len(names)}'}"
            for area, names in grouped((rule.area, rule.name) for rule in its).items()
        )
        yield from wrapped(f"{'skipped':8} {reason}{_where(of, nodes)} ({ids})", 0, 9)
    well = grouped(
        (each.rule.area, each.rule.name)
        for each in diagnoses
        if each.status == "ok" and len(each.nodes) == nodes
    )
    for area, names in well.items():
        yield from wrapped(f"{'ok':8} {area}: {', '.join(names)}", 0, 9)
    tally = collections.Counter(each.status for each in diagnoses)
    numbers = counted_all(failure=tally["fail"], warning=tally["warn"], note=tally["note"])
    yield f"{'in all':8} {numbers or 'nothing is wrong in what was looked at'}"


def _fault(each: Diagnosis, nodes: int) -> Iterator[str]:
    yield f"{each.status.upper():8} {each.rule.id}{_where(each.nodes, nodes)}: {each.rule.question}"
    for sentence in each.evidence:
        yield from wrapped(sentence, 9, 9)
    yield from wrapped(f"remedy: {each.rule.remedy}", 9, 9)
    yield f"         page: {each.rule.page}"


def _where(names: Sequence[str], nodes: int) -> str:
    return "" if len(names) == nodes else f" on {len(names)} of {nodes} nodes ({few(names, 4)})"
