"""The verdict on each case of two sides, and on both sides as a whole; printed as a table, JSON or JUnit's XML.

Two samples of launches are tested by the methods that are recommended for running times, which are skewed and have
outliers: medians and ranks instead of means and normal distributions (T. Hoefler and R. Belli, "Scientific benchmarking of
parallel computing systems", SC 2015; S. Hunold and A. Carpen-Amarie, "Reproducible MPI benchmarking is still not as easy as
you think", IEEE TPDS 2016).
"""

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count, product
from typing import Any, NamedTuple
from xml.etree import ElementTree as ET

import numpy as np

from hpccomm.errors import ResultsError
from hpccomm.results import facts
from hpccomm.results.comparison import matching
from hpccomm.results.comparison.matching import (
    BUSBW,
    METRICS,
    TIME,
    CaseKey,
    CaseValues,
    Launches,
    MatchedCases,
    Side,
)
from hpccomm.units import few, figure, xml_text

SLOWER, WRONG = FAILURES = "slower", "wrong"

UNDECIDED, UNTESTED, BUSY = OPEN = "undecided", "untested", "undecided: busy"

SAME, FASTER = "same", "faster"

MEANINGS: Mapping[str, str] = {
    WRONG: "a result of the new side is wrong",
    SLOWER: "the new side takes longer by more than the minimum effect",
    UNDECIDED: "the launches vary too much to decide; run more launches",
    BUSY: "other processes took the cores meanwhile; measure when nodes are quiet",
    UNTESTED: "there are too few launches to test anything",
    SAME: "the difference, if any, is smaller than the minimum effect",
    FASTER: "the new side takes less by more than the minimum effect",
}
"""The verdicts, the worst first."""


class Ratio(NamedTuple):
    """The relative difference of the sides' times.

    Attributes
    ----------
    value : float
        Median of the new launches over that of the base.
    low, high : float
        Its 95 % confidence interval; NaN where a side has one launch.
    """

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Rules:
    """How verdicts are found.

    Attributes
    ----------
    minimum : float
        The least effect that matters, as a part of the time.
    level : float
        Probability that a comparison of equal sides finds a difference in any of its cases.
    measure : str
        The time of a launch: one of `hpccomm.results.comparison.matching.MEASURES`.
    across : Across
        The purposeful difference of the sides.
    metric : str
        The compared figure: one of `hpccomm.results.comparison.matching.METRICS`.
    busy : bool
        Whether others kept nodes busy while a side was measured: its times decide nothing.
    """

    minimum: float = 0.02
    level: float = 0.01
    measure: str = matching.AUTO
    across: matching.Across = field(default_factory=dict)
    metric: str = matching.TIME
    busy: bool = False


@dataclass(frozen=True, slots=True)
class CaseVerdict:
    """The verdict on one case.

    Attributes
    ----------
    case : CaseKey
        The case.
    values : CaseValues
        The times of the launches.
    ratio : Ratio
        New over base.
    p_slower, p_faster : float
        Adjusted for all tests of the comparison.
    verdict : str
        One of `MEANINGS`.
    """

    case: CaseKey
    values: CaseValues
    ratio: Ratio
    p_slower: float
    p_faster: float
    verdict: str

    def shown(self, metric: str) -> list[Launches]:
        """Return the values of both sides: microseconds, or the bus bandwidth in 1e9 B/s."""
        sides = self.values.base, self.values.new
        return [self.case.bytes / side / 1e3 if metric == BUSBW else side for side in sides]


@dataclass(frozen=True, slots=True)
class Comparison:
    """The verdicts on two sides.

    Attributes
    ----------
    rules : Rules
        The rules of the test.
    matched : MatchedCases
        The cases of both sides.
    cases : tuple of CaseVerdict
        The verdict on each, the worst first.
    circumstances : tuple of str
        Other differences of the sides: versions, environment, hosts.
    left_out : tuple of str
        Runs that did not complete, and cases with a launch or pass without a time above 0.
    machines : tuple of str
        Permitted differences of the machines.
    names : tuple of str
        The names of the two variants; empty if the sides are not variants.
    others : str
        A line of comment on the launch during which other processes took most; empty if unknown.
    """

    rules: Rules
    matched: MatchedCases
    cases: tuple[CaseVerdict, ...]
    circumstances: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    machines: tuple[str, ...] = ()
    names: tuple[str, str] = ("", "")
    others: str = ""

    @property
    def unit(self) -> str:
        """The things with one value each: ``launches``, or ``passes`` within one launch."""
        return "passes" if self.matched.passes else "launches"

    @property
    def needed(self) -> int:
        """Launches or passes a side that this number of cases needs."""
        return launches_needed(self.rules.level, max(1, 2 * len(self.cases)))

    @property
    def across(self) -> list[str]:
        """The values that were compared, where they differ: ``algorithm: auto -> ring``."""
        pairs = (pair for each in self.cases for pair in each.values.across.items())
        return list(dict.fromkeys(f"{name}: {one} -> {other}" for name, (one, other) in pairs))

    @property
    def counts(self) -> dict[str, int]:
        """How many cases have each verdict, the worst first; those that no case has are left out."""
        found = Counter(each.verdict for each in self.cases)
        return {verdict: found[verdict] for verdict in MEANINGS if found[verdict]}

    @property
    def failed(self) -> bool:
        """Whether a case is slower or wrong."""
        return not self.counts.keys().isdisjoint(FAILURES)

    @property
    def decided(self) -> bool:
        """Whether there is a verdict on every case."""
        return self.counts.keys().isdisjoint(OPEN)


def compare(
    base: Side, new: Side, rules: Rules = Rules(), *, any_machine: bool = False
) -> Comparison:
    """Compare two sides, case by case.

    Parameters
    ----------
    base, new : Side
        The sides.
    rules : Rules, optional
        How verdicts are found.
    any_machine : bool
        Compare runs of machines that differ.

    Raises
    ------
    ResultsError
        If the machines differ and that was not allowed, or the sides have no case in common.
    """
    first, *others = (run.info for run in (*base.runs, *new.runs))
    of_ranks = "ranks" not in rules.across
    different = (facts.differences(first, info, ranks=of_ranks) for info in others)
    machines = tuple(dict.fromkeys(each for pair in different for each in pair))
    if machines and not any_machine:
        number = {len(info.ranks) for info in (first, *others)}
        remedy = "--across ranks, or " if of_ranks and len(number) > 1 else ""
        raise ResultsError(
            f"the runs are of different machines: {'; '.join(machines)}; give runs of the same one, or {remedy}"
            "--any-machine to compare them nevertheless"
        )
    matched = matching.matched(base, new, rules.measure, rules.across, rules.metric)
    if not matched.values:
        if matched.without:
            raise ResultsError(
                f"a launch of {few(matched.without, 2)} has no {METRICS[rules.metric]} above 0; there is nothing to compare"
            )
        sides = [
            {(name, getattr(case, name)) for case in side for name in matching.ACROSS}
            for side in (matched.only_base, matched.only_new)
        ]
        common = {*rules.across, *(name for name, _ in sides[0] & sides[1])}
        remedy = "".join(f", or --across {each}" for each in matching.ACROSS if each not in common)
        raise ResultsError(
            f"the two sides have no case in common: the base has {few(matched.only_base, 2)}, the new one "
            f"{few(matched.only_new, 2)}; measure both with the same flags{remedy}"
        )
    busiest = max((run.others for run in (*base.runs, *new.runs)), key=lambda each: each.most)
    rules = replace(rules, busy=bool(busiest.busy))
    compared = compare_passes(matched, (base.variant, new.variant), rules)
    circumstances = dict.fromkeys(
        each
        for one, other in product(base.runs, new.runs)
        for each in facts.circumstances(one.info, other.info)
    )
    return replace(
        compared,
        circumstances=tuple(each for each in circumstances if each not in machines),
        left_out=(*base.left_out, *new.left_out, *compared.left_out),
        machines=machines,
        others=busiest.line,
    )


def compare_passes(
    matched: MatchedCases, names: tuple[str, str], rules: Rules = Rules()
) -> Comparison:
    """Compare what has been matched, such as two variants that one launch measured in turns.

    Parameters
    ----------
    matched : MatchedCases
        A value for each pass, as `hpccomm.results.comparison.matching.matched_passes` gives them.
    names : tuple of str
        The variants' names.
    rules : Rules, optional
        How verdicts are found.
    """
    lack = f"a {'pass' if matched.passes else 'launch'} has no {METRICS[rules.metric]} above 0"
    left_out = tuple(f"{case}: {lack}" for case in matched.without)
    cases = _judged(matched.values, rules)
    return Comparison(rules, matched, cases, left_out=left_out, names=names)


def _judged(values: Mapping[CaseKey, CaseValues], rules: Rules) -> tuple[CaseVerdict, ...]:
    sides = [(each.base, each.new) for each in values.values()]
    # The new side is faster where the base is slower.
    tested = [*sides, *((new, base) for base, new in sides)]
    p = [slower(*each, rules.minimum) for each in tested]
    adjusted = holm(p)
    verdicts = []
    for number, (case, each) in enumerate(values.items()):
        p_slower, p_faster = adjusted[number], adjusted[number + len(values)]
        ratio = ratio_of(each.base, each.new)
        testable = least_p(len(each.base), len(each.new)) * len(p) <= rules.level
        most = 1 + rules.minimum
        holds = {
            WRONG: each.wrong > 0,
            BUSY: rules.busy,
            UNTESTED: not testable,
            SLOWER: p_slower <= rules.level,
            FASTER: p_faster <= rules.level,
            SAME: 1 / most < ratio.low and ratio.high < most,
            UNDECIDED: True,
        }
        verdict = next(name for name in holds if holds[name])
        verdicts.append(CaseVerdict(case, each, ratio, p_slower, p_faster, verdict))
    order = list(MEANINGS)
    return tuple(sorted(verdicts, key=lambda each: (order.index(each.verdict), -each.ratio.value)))


RESAMPLES = 5000
"""Samples of the bootstrap."""


def ratio_of(base: Launches, new: Launches) -> Ratio:
    """Return the ratio of medians, with a bootstrap confidence interval (percentiles; B. Efron, 1979).

    Parameters
    ----------
    base, new : ndarray of float64
        Times of launches, positive.
    """
    from scipy.stats import bootstrap

    value = float(np.median(new) / np.median(base))
    if min(len(base), len(new)) < 2:
        return Ratio(value, math.nan, math.nan)
    # Seeded: the same files give the same verdict.
    interval = bootstrap(
        (new, base),
        lambda new, base, axis: np.median(new, axis=axis) / np.median(base, axis=axis),
        n_resamples=RESAMPLES,
        vectorized=True,
        method="percentile",
        random_state=np.random.default_rng(0),
    ).confidence_interval
    return Ratio(value, float(interval.low), float(interval.high))


def slower(base: Launches, new: Launches, minimum: float) -> float:
    """Return the p value of launches being no more than `minimum` slower than the base.

    It is the one-sided rank-sum test (H. B. Mann and D. R. Whitney, 1947) of the new times against
    the base's, each made `minimum` longer: a real difference that is too small to matter does not
    count.

    Parameters
    ----------
    base, new : ndarray of float64
        Times of launches.
    minimum : float
        The least effect that matters, as a part of the time: 0.02 is 2 %.
    """
    from scipy.stats import mannwhitneyu

    # A difference of exactly the minimum does not count; otherwise rounding would decide.
    longer = base * (1 + minimum) * (1 + 1e-9)
    both = np.concatenate([new, longer])
    exact = len(np.unique(both)) == len(both) and len(new) * len(longer) <= 2500
    method = "exact" if exact else "asymptotic"
    return float(mannwhitneyu(new, longer, alternative="greater", method=method).pvalue)


def least_p(base: int, new: int) -> float:
    """Return the smallest p value for these numbers of launches: that of disjoint sides."""
    return 1 / math.comb(base + new, new)


def launches_needed(level: float, tests: int) -> int:
    """Return the launches a side that can show a difference at a level, with a number of tests."""
    return next(number for number in count(2) if least_p(number, number) <= level / tests)


def holm(p: Sequence[float]) -> list[float]:
    """Return p values adjusted for multiple tests.

    S. Holm, "A simple sequentially rejective multiple test procedure", Scandinavian Journal of Statistics 6,
    1979.
    """
    order = np.argsort(p)
    adjusted = np.empty(len(p))
    scaled = np.asarray(p, float)[order] * np.arange(len(p), 0, -1)
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(scaled))
    return [float(each) for each in adjusted]


def text(comparison: Comparison) -> str:
    """Return the table, what was compared, and the verdict as a whole, with line ends."""
    lines = [f"# Differs between the sides: {each}" for each in comparison.circumstances]
    lines += [f"# The machines differ: {each}" for each in comparison.machines]
    lines += [f"# Left out: {each}" for each in comparison.left_out]
    lines += comparison.others.splitlines()
    if any(comparison.names):
        names = [name or "all" for name in comparison.names]
        lines += [f"# Base: {names[0]}", f"# New:  {names[1]}"]
    metric = comparison.rules.metric
    if comparison.rules.across:
        same = f"{', '.join(comparison.rules.across)}: the same on both sides"
        lines.append(
            f"# Across {', '.join(comparison.across) or same}; compared: {METRICS[metric]}"
        )
    sides = (f"{side} {'GB/s' if metric == BUSBW else 'us'}" for side in ("base", "new"))
    heading = ("case", *sides, "change", "95 % interval", "p", comparison.unit, "verdict")
    table = [heading, *(_cells(each, metric) for each in comparison.cases)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        cells = [
            cell.ljust(width) if column in (0, 7) else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    lines += [f"# Only on the base side: {case}" for case in comparison.matched.only_base]
    lines += [f"# Only on the new side: {case}" for case in comparison.matched.only_new]
    return "".join(f"{line}\n" for line in [*lines, *_closing(comparison)])


def change(ratio: float, metric: str = TIME) -> str:
    """Return a ratio of times in words: ``5.1 % slower``; of the bus bandwidth that it means, ``4.9 % less``."""
    if math.isnan(ratio):
        return ""
    if metric == BUSBW:
        return f"{abs(1 / ratio - 1) * 100:.1f} % {'less' if ratio >= 1 else 'more'}"
    return f"{abs(ratio - 1) * 100:.1f} % {'slower' if ratio >= 1 else 'faster'}"


def _cells(each: CaseVerdict, metric: str) -> tuple[str, ...]:
    values, ratio = each.values, each.ratio
    medians = [figure(float(np.median(side)), 9).strip() for side in each.shown(metric)]
    low, high = (1 / ratio.high, 1 / ratio.low) if metric == BUSBW else ratio[1:]
    interval = "" if math.isnan(low) else f"{low - 1:+.1%} to {high - 1:+.1%}"
    p = min(each.p_slower, each.p_faster)
    return (
        f"{each.case} ({values.measure})",
        *medians,
        change(ratio.value, metric),
        interval,
        "" if each.verdict == UNTESTED else f"{p:.2g}",
        f"{len(values.base)} and {len(values.new)}",
        each.verdict,
    )


def _closing(comparison: Comparison) -> list[str]:
    rules, counts = comparison.rules, comparison.counts
    lines = [
        "#",
        f"# {', '.join(f'{number} {each}' for each, number in counts.items()) or 'no case'}; a change below "
        f"{rules.minimum:.1%} does not count; equal sides are found to differ once in {1 / rules.level:.0f} comparisons",
    ]
    lines += [f"# {each}: {MEANINGS[each].replace('launches', comparison.unit)}" for each in counts]
    if not comparison.counts.keys().isdisjoint((UNDECIDED, UNTESTED)):
        lines.append(
            f"# This many cases need {comparison.needed} {comparison.unit} a side at least: hpccomm perf ... "
            + ("--passes" if comparison.unit == "passes" else "--launches")
        )
    return lines


VERSION = 1
"""The version of the JSON document."""

_SAME = ("failed", "decided", "across", "unit", "circumstances", "machines", "left_out", "others")
"""The fields with the same name in the document and in `Comparison`."""


def as_json(comparison: Comparison) -> str:
    """Return a comparison as JSON; docs/how_to/compare.rst describes it."""
    rules = comparison.rules
    document = {
        "version": VERSION,
        **{name: getattr(rules, name) for name in ("minimum", "level", "metric")},
        **{name: getattr(comparison, name) for name in _SAME},
        "variants": comparison.names,
        "launches_needed": comparison.needed,
        "cases": [_case(each, rules.metric) for each in comparison.cases],
        "only_base": [case._asdict() for case in comparison.matched.only_base],
        "only_new": [case._asdict() for case in comparison.matched.only_new],
    }
    return json.dumps(document, indent=1) + "\n"


def _case(each: CaseVerdict, metric: str) -> dict[str, Any]:
    base, new = (side.tolist() for side in each.shown(metric))
    unit = "busbw" if metric == BUSBW else "us"
    return {
        **each.case._asdict(),
        "measure": each.values.measure,
        "across": dict(each.values.across),
        f"base_{unit}": base,
        f"new_{unit}": new,
        "ratio": each.ratio.value,
        "ratio_low": _number(each.ratio.low),
        "ratio_high": _number(each.ratio.high),
        "p_slower": each.p_slower,
        "p_faster": each.p_faster,
        "wrong": each.values.wrong,
        "verdict": each.verdict,
    }


def _number(value: float) -> float | None:
    """Return a number for JSON, which has no NaN."""
    return None if math.isnan(value) else value


def as_junit(comparison: Comparison, name: str) -> str:
    """Return a comparison as JUnit's XML: a test for each case, which fails if it is slower or wrong.

    Parameters
    ----------
    comparison : Comparison
        The comparison.
    name : str
        The name of the suite of tests.
    """
    metric = comparison.rules.metric
    suite = ET.Element(
        "testsuite",
        name=name,
        tests=str(len(comparison.cases)),
        failures=str(sum(each.verdict in FAILURES for each in comparison.cases)),
        errors="0",
        skipped=str(sum(each.verdict in OPEN for each in comparison.cases)),
    )
    properties = ET.SubElement(suite, "properties")
    for key, value in (("across", ", ".join(comparison.across)), ("metric", METRICS[metric])):
        ET.SubElement(properties, "property", name=key, value=value)
    for each in comparison.cases:
        names = {"classname": f"hpccomm.{each.case.collective}", "name": str(each.case)}
        test = ET.SubElement(suite, "testcase", names)
        said = f"{each.verdict}: {change(each.ratio.value, metric)}; {MEANINGS[each.verdict]}"
        if each.verdict in FAILURES:
            ET.SubElement(test, "failure", message=said, type=each.verdict)
        elif each.verdict in OPEN:
            ET.SubElement(test, "skipped", message=said)
        else:
            ET.SubElement(test, "system-out").text = said
    ET.indent(suite)
    return xml_text(ET.tostring(suite, encoding="unicode", xml_declaration=True)) + "\n"
