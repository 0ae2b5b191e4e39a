"""Binomial tree: the ranks that have the data double in each round."""


def binomial(rank: int, size: int, root: int) -> tuple[int | None, list[int]]:
    """Return the parent of `rank` in a binomial tree, and its children, nearest first.

    The child at distance b has the subtree of the b ranks that begin with it, counted from the root.
    """
    # Ranks are renumbered so that the root is 0. A rank's parent is itself without its lowest set
    # bit; its children are itself with a lower bit set.
    relative = (rank - root) % size
    children = []
    bit = 1
    while bit < size and not relative & bit:
        if relative + bit < size:
            children.append((relative + bit + root) % size)
        bit <<= 1
    return (None if relative == 0 else (relative - bit + root) % size), children
