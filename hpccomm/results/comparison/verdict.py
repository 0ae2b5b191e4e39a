"""The verdict on each case of two sides, and on both sides as a whole.

`hpccomm.tools.runs.compare`, the report and ``perf --interleave`` ask for it; `text` prints it.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import product

from hpccomm.errors import ResultsError
from hpccomm.results import fingerprint
from hpccomm.results.comparison import matching, statistics
from hpccomm.results.comparison.matching import METRICS, CaseKey, CaseValues, MatchedCases, Side
from hpccomm.results.comparison.statistics import Launches, Ratio
from hpccomm.units import few

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
        What the launches took.
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
        return [
            self.case.bytes / side / 1e3 if metric == matching.BUSBW else side for side in sides
        ]


@dataclass(frozen=True, slots=True)
class Comparison:
    """The verdicts on two sides.

    Attributes
    ----------
    rules : Rules
        The rules of the test.
    cases : tuple of CaseVerdict
        The worst first.
    only_base, only_new : tuple of CaseKey
        Cases of one side alone.
    circumstances : tuple of str
        Other differences of the sides: versions, environment, hosts.
    needed : int
        Launches a side that this number of cases needs.
    left_out : tuple of str
        Runs that did not complete, and cases with a launch or pass without a time above 0.
    machines : tuple of str
        Permitted differences of the machines.
    names : tuple of str
        Of the two variants; empty if the sides are not variants.
    unit : str
        The things with one value each: ``launches``, or ``passes`` within one launch.
    others : str
        A line of comment on the launch during which other processes took most; empty if unknown.
    """

    rules: Rules
    cases: tuple[CaseVerdict, ...]
    only_base: tuple[CaseKey, ...]
    only_new: tuple[CaseKey, ...]
    circumstances: tuple[str, ...] = ()
    needed: int = 0
    left_out: tuple[str, ...] = ()
    machines: tuple[str, ...] = ()
    names: tuple[str, str] = ("", "")
    unit: str = "launches"
    others: str = ""

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
    different = [fingerprint.differences(first, info, ranks=of_ranks) for info in others]
    machines = list(dict.fromkeys(each for pair in different for each in pair))
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
    taken = (run.others for run in (*base.runs, *new.runs))
    busiest = max(taken, key=lambda each: max(each.during, default=-1.0))
    rules = replace(rules, busy=bool(busiest.busy))
    compared = compare_passes(matched, (base.variant, new.variant), rules)
    return replace(
        compared,
        circumstances=tuple(each for each in _circumstances(base, new) if each not in machines),
        left_out=(*base.left_out, *new.left_out, *compared.left_out),
        machines=tuple(machines),
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
        Of the variants.
    rules : Rules, optional
        How verdicts are found.
    """
    lack = f"a {'pass' if matched.passes else 'launch'} has no {METRICS[rules.metric]} above 0"
    return Comparison(
        rules,
        _judged(matched.values, rules),
        matched.only_base,
        matched.only_new,
        needed=statistics.launches_needed(rules.level, max(1, 2 * len(matched.values))),
        left_out=tuple(f"{case}: {lack}" for case in matched.without),
        names=names,
        unit="passes" if matched.passes else "launches",
    )


def _circumstances(base: Side, new: Side) -> tuple[str, ...]:
    """Return the differences between any launches of the two sides."""
    infos = ([run.info for run in side.runs] for side in (base, new))
    different = (fingerprint.circumstances(*both) for both in product(*infos))
    return tuple(dict.fromkeys(each for pair in different for each in pair))


def _judged(values: Mapping[CaseKey, CaseValues], rules: Rules) -> tuple[CaseVerdict, ...]:
    sides = [(each.base, each.new) for each in values.values()]
    # The new side is faster where the base is slower.
    tested = [*sides, *((new, base) for base, new in sides)]
    p = [statistics.slower(*each, rules.minimum) for each in tested]
    adjusted = statistics.holm(p)
    verdicts = []
    for number, (case, each) in enumerate(values.items()):
        p_slower, p_faster = adjusted[number], adjusted[number + len(values)]
        ratio = statistics.ratio(each.base, each.new)
        testable = statistics.least_p(len(each.base), len(each.new)) * len(p) <= rules.level
        if each.wrong:
            verdict = WRONG
        elif rules.busy:
            verdict = BUSY
        elif not testable:
            verdict = UNTESTED
        elif p_slower <= rules.level:
            verdict = SLOWER
        elif p_faster <= rules.level:
            verdict = FASTER
        elif 1 / (1 + rules.minimum) < ratio.low and ratio.high < 1 + rules.minimum:
            verdict = SAME
        else:
            verdict = UNDECIDED
        verdicts.append(CaseVerdict(case, each, ratio, p_slower, p_faster, verdict))
    order = list(MEANINGS)
    return tuple(sorted(verdicts, key=lambda each: (order.index(each.verdict), -each.ratio.value)))
