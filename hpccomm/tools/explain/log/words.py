"""The text about a log: the first cause, what to do, consequences, and harmless messages.

`hpccomm.tools.explain.command` prints it.
"""

import textwrap
from collections.abc import Iterator
from typing import Any

from hpccomm.tools.explain.log.report import WRONG, LogReport, Sighting
from hpccomm.units import WIDTH, counted, ranks_named, wrapped

MOST_REMEDIES = 4
MOST_LISTED = 3
"""Most causes, consequences, warnings and harmless messages that are listed, of each."""

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
"""The entry of the JSON document with the same name."""


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
    """Return where a message stands, who said it and how often."""
    parts = [f"line {each.line:,}"]
    if each.ranks:
        parts.append(ranks_named(sorted(each.ranks)))
    if each.hosts:
        hosts = sorted(each.hosts)
        parts.append(f"host {hosts[0]}" if len(hosts) == 1 else f"{len(hosts)} hosts")
    if each.count > 1:
        parts.append(f"{each.count:,} times")
    return ", ".join(parts) + (f", at {each.place}" if each.place else "")
