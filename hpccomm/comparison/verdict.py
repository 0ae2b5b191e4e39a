"""The verdict on each case of two sides, and on both sides as a whole."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from hpccomm.comparison import statistics
from hpccomm.comparison.launches import AUTO, Case, Matched, Side, Values, matched
from hpccomm.comparison.statistics import Ratio
from hpccomm.errors import ResultsError
from hpccomm.results import fingerprint

SLOWER, WRONG, UNDECIDED, UNTESTED, SAME, FASTER = (
    "slower",
    "wrong",
    "undecided",
    "untested",
    "same",
    "faster",
)

MEANINGS: Mapping[str, str] = {
    WRONG: "a result of the new side is wrong",
    SLOWER: "the new side takes longer by more than the minimum effect",
    UNDECIDED: "the launches scatter too much to tell; more of them may",
    UNTESTED: "there are too few launches to test anything",
    SAME: "whatever the difference is, it is smaller than the minimum effect",
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
        How often a comparison of equal sides, all its cases together, may find a difference.
    measure : str
        What is compared: one of `hpccomm.comparison.launches.MEASURES`.
    """

    minimum: float = 0.02
    level: float = 0.01
    measure: str = AUTO


@dataclass(frozen=True, slots=True)
class CaseVerdict:
    """The verdict on one case.

    Attributes
    ----------
    case : Case
        The case.
    values : Values
        What the launches took.
    ratio : Ratio
        New over base.
    p_slower, p_faster : float
        Adjusted for all tests of the comparison.
    verdict : str
        One of `MEANINGS`.
    """

    case: Case
    values: Values
    ratio: Ratio
    p_slower: float
    p_faster: float
    verdict: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """The verdicts on two sides.

    Attributes
    ----------
    rules : Rules
        How they were found.
    cases : tuple of CaseVerdict
        The worst first.
    only_base, only_new : tuple of Case
        Cases of one side alone.
    circumstances : tuple of str
        What else differs between the sides: versions, environment, hosts.
    needed : int
        Launches a side that so many cases need.
    left_out : tuple of str
        Runs that did not complete, and cases of which a launch or pass has no time above 0.
    machines : tuple of str
        How the machines differ, where they may.
    names : tuple of str
        Of the variants that are the two sides; empty where they are none.
    unit : str
        What has a value each: ``launches``, or ``passes`` within one launch.
    """

    rules: Rules
    cases: tuple[CaseVerdict, ...]
    only_base: tuple[Case, ...]
    only_new: tuple[Case, ...]
    circumstances: tuple[str, ...]
    needed: int
    left_out: tuple[str, ...] = ()
    machines: tuple[str, ...] = ()
    names: tuple[str, str] = ("", "")
    unit: str = "launches"

    @property
    def failed(self) -> bool:
        """Whether a case is slower or wrong."""
        return any(each.verdict in (SLOWER, WRONG) for each in self.cases)

    @property
    def decided(self) -> bool:
        """Whether there is a verdict on every case."""
        return not any(each.verdict in (UNDECIDED, UNTESTED) for each in self.cases)


def compare(
    base: Side, new: Side, rules: Rules | None = None, *, any_machine: bool = False
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
    rules = rules or Rules()
    first = base.runs[0]
    machines = list(
        dict.fromkeys(
            difference
            for run in (*base.runs, *new.runs)
            for difference in fingerprint.differences(first.info, run.info)
        )
    )
    if machines and not any_machine:
        raise ResultsError(
            f"the runs are of different machines: {'; '.join(machines)}; give runs of the same one, or "
            "--any-machine to compare them nevertheless"
        )
    found = matched(base, new, rules.measure)
    if not found.values:
        if found.without:
            raise ResultsError(
                f"of {_few(found.without)} a launch has no time above 0; there is nothing to compare"
            )
        raise ResultsError(
            f"the two sides have no case in common: the base has {_few(found.only_base)}, the new one "
            f"{_few(found.only_new)}; measure both with the same flags"
        )
    return _compared(
        found,
        rules,
        names=(base.variant, new.variant),
        circumstances=_circumstances(base, new),
        left_out=(*base.left_out, *new.left_out),
        machines=tuple(machines),
    )


def compare_passes(
    found: Matched, names: tuple[str, str], rules: Rules | None = None
) -> Comparison:
    """Compare two variants that one launch measured in turns.

    Parameters
    ----------
    found : Matched
        A value for each pass, as `hpccomm.comparison.launches.matched_passes` gives them.
    names : tuple of str
        Of the variants.
    rules : Rules, optional
        How verdicts are found.
    """
    return _compared(found, rules or Rules(), names=names)


def _compared(
    found: Matched,
    rules: Rules,
    *,
    names: tuple[str, str],
    circumstances: tuple[str, ...] = (),
    left_out: tuple[str, ...] = (),
    machines: tuple[str, ...] = (),
) -> Comparison:
    unit = "a pass" if found.passes else "a launch"
    return Comparison(
        rules,
        _judged(found.values, rules),
        found.only_base,
        found.only_new,
        circumstances,
        statistics.launches_needed(rules.level, max(1, 2 * len(found.values))),
        (*left_out, *(f"{case}: {unit} has no time above 0" for case in found.without)),
        machines,
        names,
        "passes" if found.passes else "launches",
    )


def _circumstances(base: Side, new: Side) -> tuple[str, ...]:
    """Return what differs between any launch of one side and any of the other."""
    infos = ([run.info for run in side.runs] for side in (base, new))
    different = (fingerprint.circumstances(*both) for both in product(*infos))
    return tuple(dict.fromkeys(each for found in different for each in found))


def _few(cases: Sequence[Case]) -> str:
    names = [str(case) for case in cases]
    return ", ".join(names[:2]) + (f" and {len(names) - 2} more" if len(names) > 2 else "")


def _judged(found: Mapping[Case, Values], rules: Rules) -> tuple[CaseVerdict, ...]:
    p = [
        test(each.base, each.new, rules.minimum)
        for test in (statistics.slower, statistics.faster)
        for each in found.values()
    ]
    adjusted = statistics.holm(p)
    verdicts = []
    for number, (case, each) in enumerate(found.items()):
        p_slower, p_faster = adjusted[number], adjusted[number + len(found)]
        ratio = statistics.ratio(each.base, each.new)
        testable = statistics.least_p(len(each.base), len(each.new)) * 2 * len(found) <= rules.level
        if each.wrong:
            verdict = WRONG
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
