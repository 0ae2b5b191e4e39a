"""A rule: the facts that it reads, and a function that finds a fault in them.

The modules of `hpccomm.tools.doctor.rules` make rules. Their words are in ``rules.tsv`` beside this
module. `judge` applies them.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

from hpccomm.tools.doctor.reading import rows

Severity = Literal["note", "warn", "fail"]
Facts = Mapping[str, Any]
List = Sequence[Facts]
Texts = Sequence[str]
Faults = Iterator[str]
"""A rule's function: from facts to the evidence of a fault, a sentence each."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One check. Data: facts in, evidence out.

    Attributes
    ----------
    id : str
        ``AREA.NAME``.
    question : str
        Its question, such as ``May enough memory be locked?``.
    reads : tuple of str
        Paths of facts in a node's tree, such as ``limits.memlock.soft``. A star stands for each
        item of a list or dict (``gpus.devices.*.ecc``) and gives the list of the existing ones. A
        path that ends with ``?`` is None if the fact is missing; a rule that misses another is
        skipped.
    fails : callable
        Gets the facts in that order; returns a sentence of evidence for each fault, none if all is well. Pure.
    severity : {"note", "warn", "fail"}
        What a fault is. A note is on what stock systems have, and matters to some programs.
    remedy : str
        What to do.
    page : str
        The page that says more.
    over_nodes : bool
        Whether it compares nodes: each fact is then a dict from the nodes' names, and the rule is skipped if the
        job has one node.
    """

    id: str
    question: str
    reads: tuple[str, ...]
    fails: Callable[..., Iterable[str]]
    severity: Severity
    remedy: str
    page: str = "docs/doctor.rst"
    over_nodes: bool = False

    @property
    def area(self) -> str:
        """Its area: the first part of its id."""
        return self.id.partition(".")[0]

    @property
    def sources(self) -> set[str]:
        """The sources that it needs: the first parts of the paths."""
        return {path.partition(".")[0] for path in self.reads}


def rules(checks: Mapping[str, tuple[Any, ...]]) -> tuple[Rule, ...]:
    """Return rules: for each id its function and the paths that it reads; the words are in ``rules.tsv``."""
    words = {row["id"]: row for row in rows("rules.tsv")}
    return tuple(
        Rule(
            name,
            words[name]["question"],
            tuple(reads),
            fails,
            cast("Severity", words[name]["severity"]),
            words[name]["remedy"],
            words[name]["page"] or "docs/doctor.rst",
            words[name]["over"] == "nodes",
        )
        for name, (fails, *reads) in checks.items()
    )


def many(number: int, what: str) -> str:
    """Return a number with its noun, such as ``1 rank`` or ``2 ranks``."""
    return f"{number:,} {what}{'s' * (number != 1)}"
