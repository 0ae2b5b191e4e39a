"""The fault of a case, drawn from the case's number."""

import random
from collections import Counter
from dataclasses import dataclass

PROCESS = ("kill", "lost", "stop", "exception", "late", "overdue", "sys_exit", "os_exit")
"""What befalls a process. Of a lost rank the job goes on (ULFM); a late one comes within the deadline,
an overdue one after it."""
DIFFERING = ("shape", "dtype", "op", "root", "order", "algorithm", "synchrony", "skipped", "extra")
"""What one rank does otherwise than the others."""
LINKS = ("slow_link", "cut_link")
KINDS = (*PROCESS, "absent", *DIFFERING, "disk", *LINKS)

ARRAYS = ("native", "schedule", "shm", "batch", "plan", "async")
"""Operations that are a collective on arrays."""
_REPEATED = (*ARRAYS, "object", "message", "window", "creation", "split", "finalisation")
OPERATIONS = (*_REPEATED, "perf")
APPLIES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys((*PROCESS, "skipped", "extra"), _REPEATED),
    **dict.fromkeys(("shape", "op", "algorithm"), ARRAYS),
    "absent": ("creation",),
    "shape": (*ARRAYS, "message"),
    "dtype": (*ARRAYS, "message", "window"),
    "root": (*ARRAYS, "object"),
    "order": (*ARRAYS, "object", "window", "split", "finalisation"),
    "synchrony": ("native", "schedule", "shm", "plan", "async", "message"),
    "disk": ("perf",),
    "slow_link": ("native", "schedule", "message"),
    "cut_link": ("native", "schedule", "object", "async"),
}
"""The operations in which a fault can happen."""

REDUCTIONS = ("all_reduce", "reduce", "reduce_scatter")
ROOTED = ("broadcast", "reduce", "gather", "scatter")
COLLECTIVES = (*REDUCTIONS, "broadcast", "gather", "scatter", "all_gather", "all_to_all")
OBJECTS = ("broadcast_object", "all_gather_object", "gather_object")
OWN = {
    "all_reduce": ("ring", "recursive_doubling"),
    "reduce_scatter": ("ring", "halving_doubling"),
    "all_gather": ("ring", "bruck"),
    "all_to_all": ("pairwise", "linear"),
    **dict.fromkeys(ROOTED, ("binomial",)),
}
"""Algorithms of hpccomm's own, in messages."""

LOOPS = 6
"""Iterations of the loop in which the fault happens."""
DEADLINE = 3.0
CREATION_DEADLINE = 8.0
"""Of creation, in which MPI itself starts: on a busy machine that alone takes seconds."""
LONG = 60.0
AT_ONCE = 1.5
"""Seconds, at most, by which a fault in the midst of something comes after the moment."""


@dataclass(frozen=True)
class Case:
    """One job with one fault.

    Attributes
    ----------
    collective : str
        The call that is made again and again.
    faulty : int
        The rank that does something wrong, or on which it happens.
    moment : int
        The iteration in which it happens; `LOOPS` is after the last.
    amid : float
        Seconds after the beginning of that iteration, by a timer; 0 is between two calls.
    companion : bool
        Whether each iteration makes another call as well.
    caught : bool
        Whether the program catches hpccomm's errors; otherwise they end it.
    variant : int
        Chooses among a few forms of the same fault.
    """

    seed: int
    kind: str
    operation: str
    collective: str
    algorithm: str | None
    asynchronous: bool
    ranks: int
    faulty: int
    moment: int
    amid: float
    count: int
    dtype: str
    op: str
    root: int
    companion: bool
    caught: bool
    variant: int
    deadline: float

    @property
    def returns(self) -> bool:
        """Whether the ranks that catch an error return with status 0, while the faulty one is stopped for ever."""
        return self.kind == "stop" and self.caught and self.variant % 2 == 1

    @property
    def on_hosts(self) -> bool:
        """Whether its ranks are spread over two virtual hosts."""
        return self.kind in LINKS

    @property
    def creation_deadline(self) -> float:
        """Seconds that the creation of the first communicator may take, and MPI's finalisation.

        Much, unless that is what the case is about.
        """
        return CREATION_DEADLINE if self.operation in ("creation", "finalisation") else LONG

    @property
    def overdue(self) -> float:
        """Seconds after the deadline at which an overdue rank comes: MPI has 3 more to start."""
        return 5.0 if self.operation == "creation" else 2.0

    @property
    def faulty_ranks(self) -> frozenset[int]:
        """Ranks that others miss: all of the host whose link is cut."""
        return frozenset(range(self.faulty, self.ranks) if self.on_hosts else [self.faulty])


def pairs() -> list[tuple[str, str]]:
    """Return every fault with every operation in which it can happen, in the order of the seeds.

    The kinds take turns, so that a few seeds in a row have all of them and all operations.
    """
    dealer = random.Random(12)
    waiting = {kind: dealer.sample(APPLIES[kind], len(APPLIES[kind])) for kind in KINDS}
    dealt: list[tuple[str, str]] = []
    often: Counter[str] = Counter()
    while any(waiting.values()):
        for kind, left in waiting.items():
            if left:
                rarest = min(left, key=lambda operation: often[operation])
                left.remove(rarest)
                often[rarest] += 1
                dealt.append((kind, rarest))
    return dealt


PAIRS = pairs()


def deal(seed: int) -> Case:
    """Return the case of a seed. The order of the draws is part of what a seed says."""
    kind, operation = PAIRS[seed % len(PAIRS)]
    draw = random.Random(seed)
    on_links, at_creation = kind in LINKS, operation == "creation"
    ranks = draw.randint(2, 3 if on_links else 4)
    collective, algorithm, moment, amid = "all_reduce", None, 0, 0.0
    if operation == "object":
        collective = draw.choice(OBJECTS[::2] if kind == "root" else OBJECTS)
    elif operation in ARRAYS:
        collective = draw.choice({"op": REDUCTIONS, "root": ROOTED}.get(kind, COLLECTIVES))
    ints = draw.random() < 0.5
    dtype = draw.choice(("int64", "int32") if ints else ("float64", "float32"))
    faulty = ranks // 2 if on_links else draw.randrange(ranks)
    if operation in ("native", "shm"):
        algorithm = operation
    elif operation in ARRAYS:
        others = () if operation == "schedule" else (None, "native")
        algorithm = draw.choice((*others, *OWN[collective]))
    if operation == "finalisation":
        moment = LOOPS
    elif kind not in ("absent", "disk"):
        moment = draw.randrange(int(at_creation and kind in ("skipped", "extra")), LOOPS)
    soon = round(draw.random() ** 2 * AT_ONCE, 3)
    if kind in ("kill", "lost", "stop", "exception", "os_exit") and draw.random() < 0.5:
        amid = soon if at_creation else round(soon / 10, 4)
    return Case(
        *(seed, kind, operation, collective, algorithm, operation == "async"),
        *(ranks, faulty, moment, amid),
        count=draw.choice((1, 250, 20_000) if on_links else (1, 250, 20_000, 150_000)),
        dtype=dtype,
        op=draw.choice(("SUM", "PROD", "MAX", "MIN") if ints else ("SUM", "PROD")),
        root=draw.randrange(ranks),
        companion=kind == "order" or draw.random() < 0.4,
        caught=draw.random() < 0.75,
        variant=draw.randrange(4),
        deadline=CREATION_DEADLINE if at_creation else DEADLINE,
    )
