"""Whether the faulty ranks were named, in the ranks' errors and in the job's output."""

import re
from typing import Any

from .cases import DIFFERING, Case
from .expecting import ENDED, Expected
from .running import Seen

_SPEAKERS = re.compile(
    r"\brank \d+ (?:of \d+|ends\b|raised|has waited|exits with|was interrupted)"
    r"|\b(?:process|on) rank \d+"
)
"""Ranks that tell, of themselves or of their call: that accuses nobody."""
_WAITED = re.compile(r"hpccomm: rank (\d+) has waited")
_WAITING = re.compile(r"\branks? \d[\d, and-]* waits? in it")
_RANKS = re.compile(r"\branks? (\d[\d, and-]*)", re.IGNORECASE)
_SIDE_BY_SIDE = re.compile(r"call different things as number -?\d+: (.*)")
_CROSSED = "wait for each other"
_TOGETHER = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "all_gather_object")
"""Collectives that all ranks leave at about the same time."""


def healthy(case: Case) -> frozenset[int]:
    """Return the ranks of which an error may be expected."""
    return frozenset(range(case.ranks)) - ({case.faulty} if not case.on_hosts else set())


def outcomes(seen: Seen) -> dict[int, dict[str, Any]]:
    """Return the error of each rank that told one."""
    return {
        rank: event | {"rank": rank}
        for rank, events in seen.events.items()
        for event in events
        if event["event"] == "outcome"
    }


def named(case: Case, seen: Seen, wanted: Expected) -> bool | None:
    """Return whether the faulty ranks were named, by every healthy rank that told an error.

    Where none did, since the job was ended before: in what the job wrote. None where nobody had to.
    """
    if wanted.success is True or case.kind == "disk":
        return None
    told = outcomes(seen)
    if of_healthy := [outcome for rank, outcome in told.items() if rank in healthy(case)]:
        return all(_names(case, outcome) for outcome in of_healthy)
    if case.faulty in wanted.told_by and case.faulty in told:
        ranks = set(told[case.faulty]["ranks"])  # itself, or all that make another call than it
        return case.faulty in ranks or ranks == healthy(case)
    if case.kind == "exception":
        before_mpi = (
            case.operation == "creation" and case.moment == 0
        )  # then only the launcher tells
        by_launcher = before_mpi and case.faulty in _listed(seen.stderr + seen.stdout)
        return by_launcher or f"hpccomm: rank {case.faulty} raised:" in seen.stderr
    if not wanted.launcher or seen.status == ENDED:
        return any(_blames(case, line) for line in seen.stderr.splitlines())
    return None


def _names(case: Case, outcome: dict[str, Any]) -> bool:
    """Return whether one rank's error names whom it should."""
    text, rank, culprits = outcome["text"], outcome["rank"], case.faulty_ranks
    if "BufferMismatch" in outcome["kinds"]:  # of one message: the communicator is as it was
        return bool(accused(text) & culprits)
    in_the_text = _listed(_SPEAKERS.sub("", text)) & culprits
    if _CROSSED in text and case.kind in ("skipped", "extra"):
        # Of ranks that wait for each other, nothing shows which one left a call out, or added one. It is
        # fair to name those that are stuck, as long as the text tells of the faulty one as well.
        return bool(in_the_text)
    ranks = frozenset(outcome["ranks"])
    if not ranks - {rank}:
        return False
    if case.on_hosts and rank in culprits:  # it is cut off from all others
        culprits = frozenset(range(case.ranks)) - culprits
    if case.ranks == 2 and case.kind in DIFFERING:
        return True  # of two that differ, either does
    if ranks & culprits:
        # Besides those may be named that it holds up, where ranks leave a call at different times.
        ahead = case.collective not in _TOGETHER or case.operation == "message"
        behind = ranks <= case.faulty_ranks or (ahead and len(ranks) < case.ranks)
        return ranks == culprits or ("CollectiveTimeout" in outcome["kinds"] and behind)
    # A message may be missing since the sender waits for the faulty rank itself, which the text tells.
    behind = case.operation == "message" and ranks == {(rank - 1) % case.ranks}
    return behind and bool(in_the_text)


def _blames(case: Case, line: str) -> bool:
    """Return whether a line of a job's error output accuses a faulty rank, and not simply everybody."""
    if not line.startswith("hpccomm: "):
        return False
    found = accused(line)
    waits = _WAITED.match(line)
    if waits and int(waits[1]) in case.faulty_ranks:
        return found == healthy(case)  # it says where it waits itself, and where all others are
    everybody = case.ranks > 2 and found >= set(range(case.ranks))
    return bool(found & case.faulty_ranks) and not everybody


def accused(text: str) -> frozenset[int]:
    """Return the ranks that a text accuses; of lists side by side, those in the smallest groups."""
    text = _WAITING.sub("", _SPEAKERS.sub("", text))
    lists = _SIDE_BY_SIDE.search(text)
    if lists is None:
        return _listed(text)
    groups = [_listed(each.split(":")[0]) for each in lists[1].split("; ") if ":" in each]
    sizes = [len(group) for group in groups if group]
    least = min(sizes, default=0)
    return frozenset().union(*(group for group in groups if len(group) == least))


def _listed(text: str) -> frozenset[int]:
    """Return the ranks in a text, also of lists such as ``ranks 0-2 and 5``."""
    spans = [
        range(int(first), int(last or first) + 1)
        for found in _RANKS.finditer(text)
        for first, last in re.findall(r"(\d+)(?:-(\d+))?", found[1])
    ]
    return frozenset().union(*spans)
