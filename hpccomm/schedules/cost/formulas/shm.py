"""Shared memory: what a rank reads from others and writes to them, between two barriers.

Each byte passes the ports of the two ranks as a message would; meanwhile the rank folds or copies,
and the longer of the two counts. All-reduce of S bytes over n ranks, whose ports are as fast as they
copy: 2 (n-1)/n S/β. See J. M. Hashmi, S. Chakraborty, M. Bayatpour, H. Subramoni, D. K. Panda,
"Designing efficient shared address space reduction collectives for multi-/many-cores", 2018.
"""

from hpccomm.schedules.cost.case import Case
from hpccomm.schedules.cost.path import Path, Reach, Stage, copy, fold


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
    """Each rank folds its slice into the root's result; the root reads for its own meanwhile.

    The root has n + 1 parts of the array, the others n each.
    """
    n, count, root = case.ranks, case.call.counts[0], case.call.root
    parts = n * n + 1
    own = (root * n + n + 1) * count // parts - root * n * count // parts
    others = -(-n * count // parts)
    writers = min(n - 1, count - own)  # there may be fewer elements than ranks
    pieces, each = _pieces(case, others)
    written = writers * pieces * case.inject(Reach.INNER, each)
    read, local = _folded(case, own, n - 1) if own else (Path(), Path())
    return _between_barriers(case, (written + read, local, *_folded(case, others, n - 1)))


def reduce_scatter(case: Case) -> list[Stage]:
    """Each rank folds its block of all contributions."""
    return _between_barriers(case, _folded(case, max(case.call.counts), case.ranks - 1))


def all_gather(case: Case) -> list[Stage]:
    """Each rank reads the blocks of all."""
    block = max(case.call.counts)
    return _between_barriers(case, (copy(block),), _moved(case, case.ranks - 1, block))


def broadcast(case: Case) -> list[Stage]:
    """All read the root's array, and the root writes the last n-th if that is worth a segment."""
    others, count = case.ranks - 1, case.call.counts[0]
    written = count // case.ranks
    if written < case.tuning.segment:
        return _between_barriers(case, _crowded(case, others, count, copy(count)))
    # What is read passes the root's port, and the first of what it writes; the rest follows.
    port = Path(inner_latencies=1) + others * case.inject(Reach.INNER, count - written)
    first, rest = case.hop(Reach.INNER, written), others - 1
    ways = (rest * first, rest * (Path(inner_latencies=1) + copy(written)))
    at_root = tuple(port + case.inject(Reach.INNER, written) + way for way in ways)
    return _between_barriers(case, (*at_root, others * copy(written), copy(count - written)))


def all_to_all(case: Case) -> list[Stage]:
    """Either of two ranks moves half of both of their blocks, in place through scratch."""
    others, block = case.ranks - 1, max(case.call.counts)
    half = -(-block // 2)
    pieces, each = _pieces(case, half) if case.call.in_place else (1, float(half))
    own = copy(block) if not case.call.in_place else others * copy(half)
    return _between_barriers(case, (own,), _moved(case, 2 * others * pieces, each))


def to_or_from_root(case: Case) -> list[Stage]:
    """Each rank writes its block to the root's array, or reads it there."""
    block = max(case.call.counts)
    return _between_barriers(case, _crowded(case, case.ranks - 1, block, copy(block)))


def scan(case: Case) -> list[Stage]:
    """Each rank goes from one rank's arrays to the next one's, for its slice of them.

    All begin with rank 0's port and have spread out when they come to the last one's: 5n - 6 slices
    pass one after the other, as found by simulation where nothing but ports takes time.
    """
    n = case.ranks
    pieces, each = _pieces(case, -(-case.call.counts[0] // n))
    ports = Path(inner_latencies=2 * n - 1) + (5 * n - 6) * case.inject(Reach.INNER, each)
    local = Path(inner_latencies=2 * n - 1) + (n + 1) * copy(each) + (n - 1) * fold(each)
    return _between_barriers(case, (pieces * ports, pieces * local))
