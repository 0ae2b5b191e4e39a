"""Shared memory: what a rank reads from others and writes to them, between two barriers.

Each byte passes the ports of the two ranks as a message would; meanwhile the rank folds or copies,
and the longer of the two counts. All-reduce of S bytes over n ranks, whose ports are as fast as they
copy: 2 (n-1)/n S/β. See J. M. Hashmi, S. Chakraborty, M. Bayatpour, H. Subramoni, D. K. Panda,
"Designing efficient shared address space reduction collectives for multi-/many-cores", 2018.
"""

from hpccomm.cost.case import Case
from hpccomm.cost.path import Path, Reach, Stage, copy, fold


def _between_barriers(case: Case, *stages: Stage) -> list[Stage]:
    """Return `stages` and the barriers around them, each a latency for each doubling of ranks."""
    doublings = (case.ranks - 1).bit_length()
    return [(Path(inner_latencies=2 * doublings),), *stages]


def _moved(case: Case, times: float, elements: float) -> Stage:
    """Return the paths of blocks that ranks copy from or to one peer after the other."""
    return times * case.hop(Reach.INNER, elements, case.ranks), times * copy(elements)


def _crowded(case: Case, messages: int, elements: float, local: Path) -> Stage:
    """Return the paths of a rank whose port takes so many blocks at once, and of `local` steps."""
    port = case.inject(Reach.INNER, elements)
    return Path(inner_latencies=1) + messages * port, local


def _pieces(case: Case, block: int) -> tuple[int, float]:
    """Return in how many pieces a block is dealt with, and the elements of one."""
    pieces = max(1, -(-block // case.tuning.segment))
    return pieces, max(block / pieces, 1)


def _folded(case: Case, block: int, messages: int) -> Stage:
    """Return the paths of ranks that fold a block of all contributions, piece by piece."""
    pieces, each = _pieces(case, block)
    paths = _crowded(case, messages, each, (case.ranks - 1) * fold(each))
    return tuple(pieces * path for path in paths)


def all_reduce(case: Case) -> list[Stage]:
    """Each rank folds its slice of all contributions and writes it to all results."""
    others = case.ranks - 1
    block = -(-case.call.counts[0] // case.ranks)
    pieces, each = _pieces(case, block)
    written = _moved(case, pieces * others, each)
    return _between_barriers(case, _folded(case, block, others), written)


def reduce(case: Case) -> list[Stage]:
    """Each rank folds its slice into the root's result; the root reads for its own meanwhile."""
    count, others = case.call.counts[0], case.ranks - 1
    written = others if count >= case.ranks else 0  # the root has no block if few have one
    return _between_barriers(case, _folded(case, -(-count // case.ranks), others + written))


def reduce_scatter(case: Case) -> list[Stage]:
    """Each rank folds its block of all contributions."""
    return _between_barriers(case, _folded(case, max(case.call.counts), case.ranks - 1))


def all_gather(case: Case) -> list[Stage]:
    """Each rank reads the blocks of all."""
    block = max(case.call.counts)
    return _between_barriers(case, (copy(block),), _moved(case, case.ranks - 1, block))


def broadcast(case: Case) -> list[Stage]:
    """All read the root's array."""
    count = case.call.counts[0]
    return _between_barriers(case, _crowded(case, case.ranks - 1, count, copy(count)))


def all_to_all(case: Case) -> list[Stage]:
    """One of each two ranks moves both of their blocks, through scratch."""
    block = max(case.call.counts)
    pieces, each = _pieces(case, block)
    times = pieces * (case.ranks // 2)
    aside = copy(block) + times * copy(each)
    return _between_barriers(case, (aside,), _moved(case, 2 * times, each))


def to_or_from_root(case: Case) -> list[Stage]:
    """Each rank writes its block to the root's array, or reads it there."""
    block = max(case.call.counts)
    return _between_barriers(case, _crowded(case, case.ranks - 1, block, copy(block)))
