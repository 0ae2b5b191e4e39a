"""Which ranks are the odd ones where not all bring the same."""

from collections.abc import Hashable, Mapping


def odd_ones(brought: Mapping[int, Hashable]) -> tuple[int, ...]:
    """Return the ranks that bring something else than most; all, if there is no such majority.

    Examples
    --------
    >>> odd_ones({0: "max", 1: "sum", 2: "sum"}), odd_ones({0: "max", 1: "sum"}), odd_ones({0: 1, 1: 1})
    ((0,), (0, 1), ())
    """
    groups: dict[Hashable, list[int]] = {}
    for rank, each in brought.items():
        groups.setdefault(each, []).append(rank)
    sizes = sorted(map(len, groups.values()))
    if len(groups) < 2:
        return ()
    most = sizes[-1] if sizes[-1] > sizes[-2] else 0
    return tuple(sorted(rank for ranks in groups.values() if len(ranks) != most for rank in ranks))
