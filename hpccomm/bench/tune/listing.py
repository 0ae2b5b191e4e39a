"""The output of `hpccomm tune`.

`table` prints it, and writes the file that ``auto`` reads.
"""

from collections.abc import Sequence

from hpccomm.bench.tune.calls import TunedCall
from hpccomm.bench.tune.measuring import SizeTimes, spelled
from hpccomm.bench.tune.verifying import SLOWER, Confirmation
from hpccomm.dispatch.policy import CASES, Shape, Table

OTHERS = 3
"""A line names this many candidates besides the fastest."""


def heading(shape: Shape) -> str:
    """Return the first line."""
    return f"# {shape}, {shape.cores} cores a node\n"


def title(call: TunedCall) -> str:
    """Return the heading of a call's lines."""
    how = call.how and f", {call.how}"
    return f"#\n# {call.collective}{how}\n#{'bytes':>11}  {'fastest':<26}{'us':>10}   others, times as long\n"


def line(times: SizeTimes) -> str:
    """Return the line of a size, with the fastest candidates."""
    took = times.seconds
    best, *others = sorted(took, key=lambda pick: took[pick])
    slower = (f"{spelled(pick)} {took[pick] / took[best]:.2f}" for pick in others[:OTHERS])
    least = took[best] * 1e6
    return f"{times.nbytes:>12}  {spelled(best):<26}{least:>10.2f}   {', '.join(slower)}\n"


def of(table: Table) -> str:
    """Return a table as TOML, with the meaning of its cases."""
    cases = "".join(f"#   {case}: {meaning}\n" for case, meaning in CASES.items())
    return f"#\n# The table: rows of [least bytes, algorithm]\n{cases}\n" + (table.toml())


def confirmed(confirmations: Sequence[Confirmation]) -> str:
    """Return how fast `auto` is with the table."""
    slow = [each for each in confirmations if each.slower]
    lines = [
        "",
        f"# auto by this table, measured anew: within {SLOWER - 1:.0%} of the fastest fixed choice at "
        f"{len(confirmations) - len(slow)} of {len(confirmations)} sizes",
    ]
    lines += [
        f"#   slower: {each.call.collective}{each.call.how and f' ({each.call.how})'}, "
        f"{each.nbytes} bytes: {spelled(each.chosen)} {each.seconds * 1e6:.2f} us, {spelled(each.best)} "
        f"{each.fixed[each.best] * 1e6:.2f} us, {each.ratio:.2f} times as long"
        for each in slow
    ]
    if slow:
        lines.append(
            "#   the machine was busy, or two choices change places there: measure again when it is quiet"
        )
    return "\n".join(lines) + "\n"
