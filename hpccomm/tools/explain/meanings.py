"""The meanings of messages of hpccomm, libraries, launchers and the kernel, in one table.

`explain` looks messages up in it, and `log` and `log_report` look for its messages in logs.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

from hpccomm import spelling

KINDS = ("cause", "error", "consequence", "warning", "harmless")
"""Kinds of messages: a cause; an error that may have another cause; a consequence; maybe slow; harmless."""


@dataclass(frozen=True)
class Explanation:
    """The meaning of a message: a row of ``messages.tsv`` or ``xids.tsv``.

    Attributes
    ----------
    name : str
        A class of `hpccomm.errors`, an exit status, or a name such as ``nccl-shm-full``.
    component : str
        The program or library that prints it.
    kind : str
        One of `KINDS`.
    words : tuple of str
        Every line with the message has one of these words, each of at least six characters. A message
        without words is not looked for in logs.
    regex : str
        Pattern of the message. Groups named ``rank``, ``ranks`` and ``host`` give its origin, others its
        subject.
    meaning : str
        The meaning, in a sentence.
    causes : tuple of str
        The usual causes, the most frequent first; empty if the meaning is the cause.
    remedies : tuple of str
        Remedies, the likeliest first.
    check : str
        The rule or area of ``hpccomm doctor`` that would confirm it; may be empty.
    source : str
        The source of the row.
    """

    name: str
    component: str
    kind: str
    words: tuple[str, ...]
    regex: str
    meaning: str
    causes: tuple[str, ...]
    remedies: tuple[str, ...]
    check: str
    source: str

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """The compiled pattern."""
        return re.compile(self.regex)

    @cached_property
    def spans(self) -> bool:
        """Whether the message may have several lines."""
        return any(part in self.regex for part in (r"\s\S", r"\n", r"\s+"))

    def named(self, text: str) -> int | None:
        """Return the place of the name in a text; None if the text does not have it."""
        name = re.escape(self.name).replace(r"\ ", r"(?:\s+code)?\s+")
        match = re.search(rf"(?<![\w-]){name}(?![\w-])", text, re.IGNORECASE)
        return None if match is None else match.start()


rows = partial(spelling.rows, "hpccomm.tools.explain")
"""Returns the rows of a table of this package."""

XIDS = {int(row["xid"]): row for row in rows("xids.tsv")}
"""Faults that NVIDIA's driver logs, by number. The column ``whose`` tells their origin: ``gpu``, ``program``, ``note``
(no fault by itself), ``follows`` (from another fault) or ``test``."""

_FOREIGN = [(re.compile(row["regex"]), row["what"]) for row in rows("formats.tsv")]
"""Kinds of files that are no logs: the pattern of their first lines, and the kind's name with advice."""


def foreign(text: str) -> str:
    """Return the kind of a file that is no log, with advice, from its first lines; empty if the kind is not known."""
    return next((what for form, what in _FOREIGN if text.strip() and form.fullmatch(text)), "")


_OF_XIDS = {"note": "warning", "follows": "consequence", "test": "harmless"}


def _items(cell: str, mark: str = "; ") -> tuple[str, ...]:
    return tuple(filter(None, cell.split(mark)))


def _table() -> Iterator[Explanation]:
    for number, row in XIDS.items():
        yield Explanation(
            name=f"xid-{number}",
            component="NVIDIA driver",
            kind=_OF_XIDS.get(row["whose"], "cause"),
            words=("NVRM: Xid",),
            regex=rf"\bXid (?:\([^)]*\): )?(?P<what>{number})\b",
            meaning=row["meaning"],
            causes=(),
            remedies=_items(row["remedy"]) or ("nothing, unless another fault follows",),
            check="gpus.xid_program" if row["whose"] == "program" else "gpus.xid",
            source="NVIDIA's catalogue of Xids",
        )
    for row in map(dict, rows("messages.tsv")):
        words, causes = _items(row.pop("words"), "|"), _items(row.pop("causes"))
        remedies = _items(row.pop("remedies"))
        yield Explanation(words=words, causes=causes, remedies=remedies, **row)


TABLE = tuple(_table())
"""The explanations. If several fit a line, the first one counts."""


def matching(text: str) -> list[Explanation]:
    """Return the explanations of the errors, statuses and messages that a text names or quotes, in its order."""
    words = text.strip()
    if words.isdigit():
        words = f"status {words}"
    places = {each: at for each in TABLE if (at := each.named(words)) is not None}
    at = 0
    for line in words.splitlines():
        fitting = ((each, each.pattern.search(words, at)) for each in TABLE if each.remedies)
        end = at + len(line)
        each, match = next(((a, b) for a, b in fitting if b and b.start() <= end), (None, None))
        if each is not None and match is not None:
            places.setdefault(each, match.start())
        at = end + 1
    return sorted(places, key=lambda each: places[each])


def lines(explanations: Sequence[Explanation]) -> list[str]:
    """Return explanations as text."""
    text = []
    for each in explanations:
        text += [each.name, f"  {each.meaning}"]
        for title, items in (("usual causes", each.causes), ("what to do", each.remedies)):
            text += [f"  {title}:", *(f"    - {item}" for item in items)] if items else []
        text += [f"  confirm by: hpccomm doctor --only {each.check}"] if each.check else []
        text.append("")
    return text[:-1]
