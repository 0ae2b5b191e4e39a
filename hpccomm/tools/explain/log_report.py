"""The report of a log: its messages, causes before consequences and repetitions as one, and the text about them.

`log` adds messages, and `explain` prints the text: the first cause, remedies, consequences, and harmless messages.

The origin of a line, its rank and host, is found from the prefixes of launchers and libraries. Programs log errors that
they catch: a missing package, a server that does not answer, too little memory for the first try. A failure that a
program survived is not a cause.
"""

import re
import textwrap
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice, takewhile
from typing import Any, NamedTuple

from hpccomm.tools.explain.meanings import KINDS, TABLE, Explanation, rows
from hpccomm.units import WIDTH, counted, ranks_named, wrapped

_PREFIX = re.compile("|".join(f"(?:{row['regex']})" for row in rows("prefixes.tsv")))
_RANK = ("tag", "torch", "srun", "sky", "role")
_HOST = ("taghost", "at", "pod", "syslog", "ompi", "nccl", "ip")


class LineOrigin(NamedTuple):
    """The origin of a line.

    Attributes
    ----------
    tag : str
        The prefixes that are the same for all lines of a rank; empty without such.
    rank : int or None
        The rank; None if the prefixes do not tell it.
    host : str
        The host; empty if the prefixes do not tell it.
    process : str
        ``host:pid``, if a library's prefix tells it; else empty.
    time : str
        The time as the line has it; times sort within a host.
    """

    tag: str = ""
    rank: int | None = None
    host: str = ""
    process: str = ""
    time: str = ""


def split(line: str) -> tuple[LineOrigin, str]:
    """Return the origin of a line, and its text without prefixes."""
    tag, facts = "", dict[str, str]()
    while (prefix := _PREFIX.match(line)) and prefix.end():
        named = {name: value for name, value in prefix.groupdict().items() if value is not None}
        if named.keys() & {"tag", "torch", "srun", "pod", "role", "actor"}:
            tag += prefix[0]
        facts = named | facts
        line = line[prefix.end() :]
    ranks = [int(facts[name]) for name in _RANK if name in facts]
    host = next((facts[name] for name in _HOST if name in facts), "")
    pid = facts.get("pid") or facts.get("opid")
    process = f"{host}:{pid}" if pid else ""
    return LineOrigin(tag, ranks[0] if ranks else None, host, process, facts.get("time", "")), line


ENDED, PROGRESS, SAID = range(3)
"""How a program went on after a failure. `ENDED`: no line shows that it did. `PROGRESS`: lines of progress follow, or
lines that differ in numbers alone, as loops print them. `SAID`: the program says so itself."""

NEAR, MOST = 3, 20
"""Lines after a failure in which a program says how it goes on, and lines in which progress is looked for. Lines about
the failure do not count."""

_CATCHABLE, _GOES_ON, _MILD, _FOLLOWS, _LAUNCHER, _PROGRESS = (
    re.compile("|".join(row["regex"] for row in rows("afterwards.tsv") if row["what"] == what))
    for what in ("catchable", "goes on", "mild", "follows", "launcher", "progress")
)


def went_on(component: str, before: str, said: str, after: Iterable[str]) -> int:
    """Return how a program went on after a failure.

    Parameters
    ----------
    component : str
        The component that failed.
    before : str
        The line before a traceback; empty for a failure of one line.
    said : str
        The line of a failure of one line; empty for a traceback.
    after : iterable of str
        The lines of the same rank that follow. If lines have no tags, those of several ranks may be mixed.

    Returns
    -------
    int
        `ENDED`, `PROGRESS` or `SAID`.
    """
    if not _CATCHABLE.fullmatch(component) or _LAUNCHER.match(said):
        return ENDED
    if _GOES_ON.search(said) or _MILD.search(said):
        return SAID
    own = takewhile(lambda line: not _LAUNCHER.match(line), after)
    ordinary = (line for line in own if not _FOLLOWS.match(line) or _GOES_ON.search(line))
    first, progress, loop = dict[str, str](), set[str](), False
    for number, line in enumerate(islice(ordinary, MOST)):
        if number < NEAR and _GOES_ON.search(line):
            return SAID
        alike = first.setdefault(re.sub(r"[\d.]+", "0", line), line)
        loop = loop or alike != line
        if loop or _PROGRESS.match(line):
            progress.add(line)
        if loop and number >= NEAR - 1:
            break
    if progress and (_GOES_ON.search(before) or _MILD.search(before)):
        return SAID
    return PROGRESS if loop or len(progress) > 1 else ENDED


WRONG = KINDS[:3]
"""Kinds of messages that say that something is wrong."""

_FINAL = ("-killed", "-segv", "-bus", "-aborted", "-illegal", "-signal")
"""Ends of the names of messages of launchers and libraries about a signal."""

MOST_FORMS = 50
"""Most forms of a message that are counted separately, such as exceptions with different texts."""


@dataclass(slots=True)
class Sighting:
    """A message, or a form of it, with all its places in a log.

    Attributes
    ----------
    message : Explanation
        The message.
    line : int
        Number of the line that is shown, from 1: the first one, unless the program survived it and not a later one.
    text : str
        Text of that line.
    rank : int or None
        Rank of that line, if known.
    place : str
        The place in the user's program, from the traceback of that line; empty without one.
    details : dict
        The values of the groups of the message's pattern.
    count : int
        How often it stands in the log.
    ranks : set of int
        The known ranks that wrote it or that it names.
    hosts : dict
        For each known host, the time and the line of the host's first such message.
    went_on : int
        How the program went on after that line: `ENDED`, `PROGRESS` or `SAID`. If the message stands several times,
        the least of these counts.
    """

    message: Explanation
    line: int
    text: str
    rank: int | None
    place: str
    details: dict[str, str]
    count: int = 0
    ranks: set[int] = field(default_factory=set)
    hosts: dict[str, tuple[str, int]] = field(default_factory=dict)
    went_on: int = ENDED


@dataclass(slots=True)
class LogReport:
    """The messages of a log.

    Attributes
    ----------
    name : str
        Name of the log.
    lines : int
        Number of its lines.
    damage : str
        Why it could not be read to its end; empty if it could.
    sightings : dict
        Its sightings by name and form of the message.
    ranks : dict
        Ranks by ``host:pid``, as far as NCCL's lines tell them.
    """

    name: str
    lines: int = 0
    damage: str = ""
    sightings: dict[tuple[str, str], Sighting] = field(default_factory=dict)
    ranks: dict[str, int] = field(default_factory=dict)

    def add(
        self,
        message: Explanation,
        line: int,
        text: str,
        origin: LineOrigin,
        details: dict[str, str],
        place: str = "",
        went_on: Callable[[], int] = lambda: ENDED,
    ) -> Sighting:
        """Add a message, and return its sighting. `went_on` is called only if its result can matter."""
        named = details.get("rank")
        rank = int(named) if named and len(named) < 10 else origin.rank
        if rank is None:
            rank = int(of) if (of := details.get("group_rank")) else self.ranks.get(origin.process)
        key = (message.name, details.get("what", ""))
        if key not in self.sightings and len(self.sightings) >= MOST_FORMS:
            forms = [each for each in self.sightings if each[0] == message.name]
            key = forms[-1] if len(forms) >= MOST_FORMS else key
        seen = self.sightings.get(key)
        fate = went_on() if seen is None or seen.went_on != ENDED else ENDED
        if seen is None:
            seen = Sighting(message, line, text.strip(), rank, place, details, went_on=fate)
            self.sightings[key] = seen
        elif fate < seen.went_on:
            seen.line, seen.text, seen.rank, seen.place = line, text.strip(), rank, place
            seen.details, seen.went_on = details, fate
        seen.count += 1
        seen.ranks.update(_lines_listed(details.get("ranks", "")))
        if rank is not None:
            seen.ranks.add(rank)
        host = details.get("host") or origin.host
        if host and (host not in seen.hosts or _earlier(origin.time, seen.hosts[host][0])):
            seen.hosts[host] = (origin.time, line)
        return seen

    def compare_calls(self) -> None:
        """If PyTorch's watchdogs saw ranks wait in different calls, make that the cause."""
        calls = [
            a for (name, what), a in self.sightings.items() if what and name == "torch-watchdog"
        ]
        ranks = [rank for each in calls for rank in each.ranks]
        if len(calls) > 1 and len(ranks) == len({*ranks}):
            odd = min(calls, key=lambda each: len(each.ranks))
            where = (f"{ranks_named(sorted(a.ranks))} in {a.details['what']}" for a in calls)
            row = next(each for each in TABLE if each.name == "torch-other-call")
            odd.message = replace(row, meaning=f"{row.meaning}: {'; '.join(where)}")

    @property
    def status(self) -> int:
        """1 if something is wrong, else 0."""
        return int(bool(self.of(*WRONG)))

    def kind(self, seen: Sighting) -> str:
        """Return the kind of a message; ``"survived"`` for a failure after which the program went on.

        Lines of progress may be another rank's, or those of a program that cleans up. So they count only if another
        message tells why the job ended.
        """
        failures = [each for each in self.sightings.values() if each.message.kind in WRONG]
        left = [each.message for each in failures if each.went_on == ENDED]
        told = any(each.kind == "cause" or each.name.endswith(_FINAL) for each in left)
        counts = PROGRESS if told else SAID
        return "survived" if seen in failures and seen.went_on >= counts else seen.message.kind

    def of(self, *kinds: str) -> list[Sighting]:
        """Return the messages of some kinds, ordered by kind and then by line.

        Crashes without a rank are last in their kind, since the launcher's message about them names the rank.
        """
        found = [each for each in self.sightings.values() if self.kind(each) in kinds]
        found.sort(key=lambda a: (a.message.name == "ucx-signal" and not a.ranks, a.line))
        return sorted(found, key=lambda a: kinds.index(self.kind(a)))

    def first_by_host(self) -> dict[str, tuple[int, str]]:
        """Return line and message of each host's first cause.

        The clocks of hosts differ, so times are compared only within a host.
        """
        firsts: dict[str, tuple[str, int, str]] = {}
        for each in self.of("cause"):
            for host, (time, line) in each.hosts.items():
                before = firsts.get(host)
                if before is None or _earlier(time, before[0]):
                    firsts[host] = (time, line, each.message.name)
        return {host: (line, name) for host, (_, line, name) in firsts.items()}


def _earlier(time: str, than: str) -> bool:
    return bool(time and than and time < than)


def _lines_listed(ranks: str) -> Iterator[int]:
    """Yield the ranks of a list such as ``0-3,7``."""
    for first, last in re.findall(r"(\d{1,9})(?:-(\d{1,9}))?", ranks):
        yield from range(int(first), min(int(last or first), int(first) + 99999) + 1)


MOST_REMEDIES = 4
MOST_LISTED = 3
"""Most messages of each kind that are listed."""

_TITLES = {
    "cause": "Also",
    "error": "Said of it",
    "consequence": "Follows from it",
    "survived": "Survived, as later lines tell",
    "warning": "Worth a look",
    "harmless": "Harmless",
}

_OF_MESSAGE = ("name", "component", "kind", "meaning", "remedies", "check", "source")
_OF_SIGHTING = ("line", "text", "place", "details", "count", "rank")
"""Attributes of a message and of a sighting that the JSON document has under the same names."""


def lines(report: LogReport) -> list[str]:
    """Return a report as text."""
    wrong = report.of(*WRONG)
    read = f"{report.name}: {report.lines:,} line{'s' * (report.lines != 1)}"
    text = [f"{read}, and then it is damaged: {report.damage}" if report.damage else read]
    text += _first(report, wrong[0]) if wrong else _nothing(report)
    for kind, title in _TITLES.items():
        others = [each for each in report.of(kind) if each not in wrong[:1]]
        text += _listed(title, [each for each in others if "dumps" not in each.details])
    firsts = report.first_by_host()
    if len(set(firsts.values())) > 1 and len({name for _, name in firsts.values()}) > 1:
        each = [f"{host} line {line}" for host, (line, _) in sorted(firsts.items())]
        said = f"The clocks of hosts differ. The first cause on each: {', '.join(each[:6])}"
        text += wrapped(said, 0, 2)
    return text


def document(report: LogReport) -> dict[str, Any]:
    """Return a report for JSON."""
    sightings = report.of(*WRONG, "survived", "warning", "harmless", "unknown")
    return {
        **{name: getattr(report, name) for name in ("status", "name", "lines", "damage")},
        "first": next((each.message.name for each in report.of(*WRONG)), None),
        "found": [
            {name: getattr(each.message, name) for name in _OF_MESSAGE}
            | {name: getattr(each, name) for name in _OF_SIGHTING}
            | {"ranks": sorted(each.ranks), "kind": report.kind(each)}
            | {"hosts": {host: line for host, (_, line) in each.hosts.items()}}
            for each in sightings
        ],
    }


def _first(report: LogReport, first: Sighting) -> Iterator[str]:
    message = first.message
    named = {
        "cause": "First cause",
        "error": "It failed, and no line says why",
        "consequence": "Only consequences are here; look for the cause in the logs of other ranks and hosts",
    }
    yield f"{named[message.kind]}: {_where(first)}"
    yield f"  {textwrap.shorten(first.text, 2 * WIDTH, placeholder=' ...')}"
    yield from wrapped(f"{message.component}: {message.meaning}", 2, 4)
    for number, remedy in enumerate(message.remedies[:MOST_REMEDIES], 1):
        yield from wrapped(f"{number}. {remedy}", 4, 6)
    if message.check:
        yield f"  confirm by: hpccomm doctor --only {message.check}"
    dumps = next((each for each in report.of("harmless") if "dumps" in each.details), None)
    if dumps is not None:
        yield f"  more: hpccomm explain {dumps.details['dumps']}"


def _nothing(report: LogReport) -> Iterator[str]:
    yield "Nothing in it is known to be wrong."
    unknown = report.of("unknown")
    if unknown:
        yield "No message of the table is in these lines, which speak of an error:"
        for each in unknown[:MOST_LISTED]:
            yield f"  line {each.line}: {textwrap.shorten(each.text, WIDTH, placeholder=' ...')}"


def _listed(title: str, sightings: list[Sighting]) -> Iterator[str]:
    for each in sightings[:MOST_LISTED]:
        yield textwrap.shorten(
            f"{title}: {_where(each)}: {each.message.meaning}", WIDTH, placeholder=" ..."
        )
    if len(sightings) > MOST_LISTED:
        yield f"{title}: {counted(len(sightings) - MOST_LISTED, 'more message')} (--json lists them)"


def _where(each: Sighting) -> str:
    """Return the line of a message, its ranks and hosts, and how often it stands in the log."""
    parts = [f"line {each.line:,}"]
    if each.ranks:
        parts.append(ranks_named(sorted(each.ranks)))
    if each.hosts:
        hosts = sorted(each.hosts)
        parts.append(f"host {hosts[0]}" if len(hosts) == 1 else f"{len(hosts)} hosts")
    if each.count > 1:
        parts.append(f"{each.count:,} times")
    return ", ".join(parts) + (f", at {each.place}" if each.place else "")
