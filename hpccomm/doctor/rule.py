"""A rule: which facts it reads, and what in them is a fault."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

Severity = Literal["warn", "fail"]


@dataclass(frozen=True, slots=True)
class Rule:
    """One check. Data: facts in, evidence out.

    Attributes
    ----------
    id : str
        ``AREA.NAME``.
    question : str
        What it asks, such as ``May enough memory be locked?``.
    reads : tuple of str
        Paths of facts in a node's tree, such as ``limits.memlock.soft``. A star stands for each item of a list or
        dict (``gpus.devices.*.ecc``) and gives the list of those that are there. A path that ends with ``?`` is
        None where the fact is missing; a rule that misses another is skipped.
    fails : callable
        Gets the facts in that order; returns a sentence of evidence for each fault, none if all is well. Pure.
    severity : {"warn", "fail"}
        What a fault is.
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
        """What it is about: the first part of its id."""
        return self.id.partition(".")[0]

    @property
    def sources(self) -> set[str]:
        """The sources that it needs: the first parts of the paths."""
        return {path.partition(".")[0] for path in self.reads}
