"""What `hpccomm tune` says as it measures."""

from collections.abc import Sequence

from hpccomm.bench.tune.measuring import Finding, spelled
from hpccomm.bench.tune.verifying import SLOWER, Verdict
from hpccomm.dispatch.policy import CASES, Shape, Table, text

OTHERS = 3
"""Ways that a line names beside the fastest."""


def heading(shape: Shape) -> str:
    """Return the first line."""
    return f"# {shape}, {shape.cores} cores a node\n"


def title(collective: str, *, deterministic: bool) -> str:
    """Return what stands above a collective's lines."""
    how = ", contributions in rank order" if deterministic else ""
    return f"#\n# {collective}{how}\n#{'bytes':>11}  {'fastest':<26}{'us':>10}   others, times as long\n"


def line(finding: Finding) -> str:
    """Return the line of a size: the fastest ways of those that were measured."""
    took = finding.seconds
    best, *others = sorted(took, key=lambda pick: took[pick])
    slower = (f"{spelled(pick)} {took[pick] / took[best]:.2f}" for pick in others[:OTHERS])
    return f"{finding.nbytes:>12}  {spelled(best):<26}{took[best] * 1e6:>10.2f}   {', '.join(slower)}\n"


def of(table: Table) -> str:
    """Return a table as it is kept in the package, and what its cases are."""
    cases = "".join(f"#   {case}: {meaning}\n" for case, meaning in CASES.items())
    return f"#\n# The table: rows of [bytes from which on it is taken, algorithm]\n{cases}\n" + (
        text.dump(table)
    )


def verdict(verdicts: Sequence[Verdict]) -> str:
    """Return how `auto` does by the table."""
    slow = [each for each in verdicts if each.ratio > SLOWER]
    lines = [
        "",
        f"# auto by this table, measured anew: within {SLOWER - 1:.0%} of the fastest fixed choice at "
        f"{len(verdicts) - len(slow)} of {len(verdicts)} sizes",
    ]
    lines += [
        f"#   slower: {each.collective}{' in rank order' if each.deterministic else ''}, "
        f"{each.nbytes} bytes: {each.seconds * 1e6:.2f} us, {spelled(each.best)} "
        f"{each.fixed[each.best] * 1e6:.2f} us, {each.ratio:.2f} times as long"
        for each in slow
    ]
    if slow:
        lines.append(
            "#   the machine was busy, or two ways change places there: measure again when it is quiet"
        )
    return "\n".join(lines) + "\n"
