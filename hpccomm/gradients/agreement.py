"""The ranks that train together, and comparisons of their models, settings and arrays.

All of `hpccomm.gradients` uses them, and the hook of `hpccomm.torch` uses `RankGroup`.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from hashlib import blake2b, sha256
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from hpccomm.contracts.pairing import odd_ones
from hpccomm.errors import HpccommError, RankMismatch, UsageError
from hpccomm.gradients.parameters import Array, Arrays, is_on_device, on_host
from hpccomm.reductions import ReduceOp
from hpccomm.runtime.recorder import entered
from hpccomm.units import grouped, ranks_named

if TYPE_CHECKING:
    from hpccomm.communicator import Communicator


class RankGroup:
    """The ranks of a communicator. All calls of it get the same timeout.

    Parameters
    ----------
    comm : Communicator
        The communicator over the ranks.
    timeout : float or None
        Timeout of each call in seconds. None is the communicator's.
    """

    def __init__(self, comm: "Communicator", timeout: float | None) -> None:
        self.comm, self.timeout = comm, timeout
        self.rank, self.size = comm.rank, comm.size

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """Return a method of the communicator with the timeout."""
        return partial(getattr(self.comm, name), timeout=self.timeout)

    def broadcast_each(self, arrays: Iterable[Array], root: int) -> None:
        """Give all ranks the arrays of `root`, on host and devices. Collective; blocks."""
        for _, side in sorted(grouped((is_on_device(x), x) for x in arrays).items()):
            # An array in another layout, such as PyTorch's channels_last, goes through a copy.
            flats = [x if x.flags.c_contiguous else x.copy(order="C") for x in side]
            with self.batch():
                for flat in flats:
                    self.comm.broadcast(flat, root)
            for x, flat in zip(side, flats, strict=True):
                if flat is not x and root != self.rank:
                    x[...] = flat


ResultT = TypeVar("ResultT")

MOST = 5
"""The most differences that a message names, and the most arrays for which it has the largest difference of elements."""


def texts(arrays: Arrays, settings: Mapping[str, object]) -> dict[str, str]:
    """Return the texts by which ranks compare models and settings."""
    parameters = {f"parameter {each.name!r}": each.described for each in arrays}
    return parameters | {name: repr(value) for name, value in settings.items()}


def agree(
    group: RankGroup,
    make: Callable[[], tuple[ResultT, dict[str, str]]],
    problem: str = "the ranks have different models",
) -> ResultT:
    """Return this rank's value if all ranks have equal texts. Collective; blocks.

    The ranks exchange digests. They exchange the texts only if digests differ or a rank raises an error.

    Parameters
    ----------
    group : RankGroup
        The ranks that train together.
    make : callable
        Returns the value, and the texts that must be equal on all ranks, see `texts`. It may raise an error.
    problem : str
        The beginning of the message if texts differ.

    Raises
    ------
    HpccommError
        The error that `make` raises on this rank. Other exceptions become a UsageError.
    RankMismatch
        On every rank, if the texts differ. The message names the differences and the ranks. If `make` raises, on the
        ranks on which it does not. The communicator can still be used.
    """
    entered()
    error: HpccommError | None = None
    compared: dict[str, str] | str
    try:
        result, compared = make()
    except HpccommError as raised:
        error, compared = raised, str(raised)
    except Exception as raised:  # noqa: BLE001 (the other ranks must hear of it)
        compared = f"{type(raised).__name__}: {raised}"
        error = UsageError(compared)
        error.__cause__ = raised
    content = compared if isinstance(compared, str) else list(compared.items())
    digest = sha256(repr(content).encode()).hexdigest()
    everyone = group.all_gather_object((error is None, digest))
    if all(each == (True, everyone[0][1]) for each in everyone):
        return result
    every = group.all_gather_object(compared)
    if error is not None:
        raise error
    for rank, text in enumerate(every):
        if isinstance(text, str):
            why = f"rank {rank} raised an error: {text}"
            raise RankMismatch(why, rank=group.rank, ranks=(rank,))
    raise _mismatch(group, problem, *_differences(every), "all ranks need the same")


def _mismatch(
    group: RankGroup, problem: str, lines: list[str], ranks: Collection[int], remedy: str
) -> RankMismatch:
    """Return the error for ranks that differ. Its message lists the first `MOST` differences."""
    if len(lines) > MOST:
        lines[MOST:] = [f"and {len(lines) - MOST} more"]
    text = f"{problem}: {'; '.join(lines)}; {remedy}"
    return RankMismatch(text, rank=group.rank, ranks=sorted(ranks))


def _differences(every: Sequence[dict[str, str]]) -> tuple[list[str], set[int]]:
    """Return a sentence for each difference from rank 0, and the ranks that differ."""
    first = every[0]
    ranks: set[int] = set()
    lines = []
    for name in dict.fromkeys(name for text in every for name in text):
        by_value = grouped((text.get(name, "missing"), rank) for rank, text in enumerate(every))
        (value_of_0, _), *others = by_value.items()
        ranks.update(*(where for _, where in others))
        lines += [
            f"{name} is {value_of_0} on rank 0 and {value} on {ranks_named(where)}"
            for value, where in others
        ]
    for rank, text in enumerate(() if lines else every):
        pairs = enumerate(zip(first, text, strict=True))
        for number, (one, other) in [(n, pair) for n, pair in pairs if pair[0] != pair[1]][:1]:
            ranks.add(rank)
            place = f"number {number} is {one} on rank 0 and {other} on rank {rank}"
            lines.append(f"the order differs: {place}")
    return lines, ranks


def check_same(group: RankGroup, arrays: Mapping[str, Array], *, problem: str, remedy: str) -> None:
    """Raise unless arrays have the same bits on all ranks. Collective; blocks.

    The ranks exchange 8 bytes for each array. For each of the first `MOST` arrays that differ, they make two reductions.

    Parameters
    ----------
    group : RankGroup
        The ranks.
    arrays : mapping of str to ndarray
        The arrays, by descriptions for the message such as ``"parameter 'weight'"``. Their shapes and dtypes must be
        equal on all ranks.
    problem, remedy : str
        The beginning and the end of the message.

    Raises
    ------
    RankMismatch
        On every rank, if an array differs. The message names the first `MOST` such arrays, the ranks that differ from
        most others, and the largest difference of an element between two ranks. It is 0 if only the signs of zeros
        differ, and nan if an element is NaN.
    """
    digests = np.frombuffer(b"".join(map(_digest, arrays.values())), np.uint64).copy()
    every = group.all_gather(digests)
    lines: list[str] = []
    ranks: set[int] = set()
    for (name, array), column in zip(arrays.items(), every.T, strict=True):
        if (column == column[0]).all():
            continue
        odd = odd_ones(dict(enumerate(map(int, column))))
        ranks.update(odd)
        lines.append(f"{name} on {ranks_named(odd)}")
        if len(lines) <= MOST:
            lines[-1] += f", by up to {_largest_difference(group, array):.3g}"
    if lines:
        raise _mismatch(group, problem, lines, ranks, remedy)


def check_initial(group: RankGroup, arrays: Arrays) -> None:
    """Raise unless parameters have the same first values on all ranks, as `check_same` does. Collective; blocks."""
    check_same(
        group,
        {f"parameter {each.name!r}": array for each, array in arrays.items()},
        problem="the ranks begin with different values",
        remedy="give all ranks the same values; or give initial='broadcast' for the values of rank 0, or "
        "initial='ignore' if you set them later",
    )


def _largest_difference(group: RankGroup, array: Array) -> float:
    content = on_host(array)
    high, low = np.array(content, order="C"), np.array(content, order="C")
    group.all_reduce(high, ReduceOp.MAX)
    group.all_reduce(low, ReduceOp.MIN)
    with np.errstate(invalid="ignore"):  # inf - inf, if an element is infinite on all ranks
        return float(np.subtract(high, low, dtype=np.float64).max())


def _digest(array: Array) -> bytes:
    # Arrays of ml_dtypes' types do not give their memory as buffers, but views of them as bytes do.
    content = np.ascontiguousarray(on_host(array)).reshape(-1).view(np.uint8)
    return blake2b(content.data, digest_size=8).digest()
