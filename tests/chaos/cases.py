"""The fault of a case, drawn from the case's number."""

import random
from collections import Counter
from dataclasses import asdict, dataclass, fields
from typing import Any

PROCESS = ("kill", "lost", "stop", "exception", "late", "overdue", "sys_exit", "os_exit")
"""What befalls a process. Of a lost rank the job goes on (ULFM); a late one comes within the deadline,
an overdue one after it."""
DIFFERING = ("shape", "dtype", "op", "root", "order", "algorithm", "synchrony", "skipped", "extra")
"""What one rank does otherwise than the others."""
LINKS = ("slow_link", "cut_link")
KINDS = (*PROCESS, "absent", *DIFFERING, "disk", *LINKS)

ARRAYS = ("native", "schedule", "shm", "batch", "plan", "async")
"""Operations that are a collective on arrays."""
OPERATIONS = (*ARRAYS, "object", "message", "window", "creation", "split", "finalisation", "perf")

_REPEATED = tuple(each for each in OPERATIONS if each != "perf")
APPLIES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(PROCESS, _REPEATED),
    "absent": ("creation",),
    "shape": (*ARRAYS, "message"),
    "dtype": (*ARRAYS, "message", "window"),
    "op": ARRAYS,
    "root": (*ARRAYS, "object"),
    "order": (*ARRAYS, "object", "window", "split", "finalisation"),
    "algorithm": ARRAYS,
    "synchrony": ("native", "schedule", "shm", "plan", "async", "message"),
    "skipped": _REPEATED,
    "extra": _REPEATED,
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
    def ulfm(self) -> bool:
        """Whether the job is started so that it survives the loss of a rank."""
        return self.kind == "lost"

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

    def dump(self) -> dict[str, Any]:
        """Return it as plain data."""
        return asdict(self)

    def __str__(self) -> str:
        shown = {f.name: getattr(self, f.name) for f in fields(self)}
        for name in ("seed", "kind", "operation"):
            del shown[name]
        rest = " ".join(f"{name}={value}" for name, value in shown.items())
        return f"{self.seed}: {self.kind} x {self.operation} ({rest})"


def load(data: dict[str, Any]) -> Case:
    """Return the case of plain data."""
    return Case(**data)


def pairs(kinds: tuple[str, ...] = KINDS) -> list[tuple[str, str]]:
    """Return every fault with every operation in which it can happen, in the order of the seeds.

    The kinds take turns, so that a few seeds in a row have all of them and all operations.
    """
    dealer = random.Random(12)
    waiting = {kind: dealer.sample(APPLIES[kind], len(APPLIES[kind])) for kind in kinds}
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
    """Return the case of a seed."""
    kind, operation = PAIRS[seed % len(PAIRS)]
    draw = random.Random(seed)
    ranks = draw.randint(2, 4) if kind not in LINKS else draw.randint(2, 3)
    collective = _collective(kind, operation, draw)
    ints = draw.random() < 0.5
    dtype = draw.choice(("int64", "int32") if ints else ("float64", "float32"))
    faulty = draw.randrange(ranks) if kind not in LINKS else ranks // 2
    return Case(
        seed=seed,
        kind=kind,
        operation=operation,
        collective=collective,
        algorithm=_algorithm(operation, collective, draw),
        asynchronous=operation == "async",
        ranks=ranks,
        faulty=faulty,
        moment=_moment(kind, operation, draw),
        amid=_amid(kind, operation, draw),
        count=draw.choice((1, 250, 20_000) if kind in LINKS else (1, 250, 20_000, 150_000)),
        dtype=dtype,
        op=draw.choice(("SUM", "PROD", "MAX", "MIN") if ints else ("SUM", "PROD")),
        root=draw.randrange(ranks),
        companion=kind == "order" or draw.random() < 0.4,
        caught=draw.random() < 0.75,
        variant=draw.randrange(4),
        deadline=CREATION_DEADLINE if operation == "creation" else DEADLINE,
    )


def _collective(kind: str, operation: str, draw: random.Random) -> str:
    if operation == "object":
        return draw.choice(OBJECTS[::2] if kind == "root" else OBJECTS)
    if operation in ARRAYS:
        fits = {"op": REDUCTIONS, "root": ROOTED}.get(kind, COLLECTIVES)
        return draw.choice(fits)
    return "all_reduce"


def _algorithm(operation: str, collective: str, draw: random.Random) -> str | None:
    if operation == "native":
        return "native"
    if operation == "shm":
        return "shm"
    if operation == "schedule":
        return draw.choice(OWN[collective])
    if operation in ARRAYS:
        return draw.choice((None, "native", *OWN[collective]))
    return None


def _moment(kind: str, operation: str, draw: random.Random) -> int:
    if operation == "finalisation":
        return LOOPS
    if kind in ("absent", "disk"):
        return 0
    least = 1 if operation == "creation" and kind in ("skipped", "extra") else 0
    return draw.randrange(least, LOOPS)


def _amid(kind: str, operation: str, draw: random.Random) -> float:
    amid = round(draw.random() ** 2 * AT_ONCE, 3)
    if kind in ("kill", "lost", "stop", "exception", "os_exit") and draw.random() < 0.5:
        return amid if operation == "creation" else round(amid / 10, 4)
    return 0.0
