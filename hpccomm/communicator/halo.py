"""Halos: the ghost cells around a rank's block, which its neighbors in a grid own. `Grid.halo` makes them.

The axes are exchanged one after the other, and the faces include the cells that earlier axes have filled. So corners
arrive without messages between diagonal neighbors, which takes less time than messages to all 3**n - 1 ranks around.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.lib.array_utils import normalize_axis_tuple
from numpy.typing import NDArray

from hpccomm.calls.core import Core
from hpccomm.calls.lanes import Call, Lane, MessageRequest
from hpccomm.calls.lanes.lane import HaloPart
from hpccomm.communicator.planning import agreed, carrying_out
from hpccomm.errors import RankMismatch, UsageError
from hpccomm.memory.cuda.arrays import DeviceArray
from hpccomm.memory.views import check_dtype, empty_like_kind, view
from hpccomm.runtime.work import Work
from hpccomm.settings import check_bool, check_int

Width = int | Sequence[int | Sequence[int]]
"""Number of ghost cells: for all axes, for each axis, or for each axis before and after the block."""

Neighbors = tuple[tuple[int | None, int | None], ...]
"""The rank before and the rank after a rank along each axis; None beyond an edge."""


class GridPlaces(Protocol):
    """A grid, as its halos see it; see `Grid`."""

    ranks: NDArray[np.int64]
    periodic: tuple[bool, ...]

    @property
    def neighbors(self) -> Neighbors:
        """The neighbors of this rank along each axis."""


class _Bound(NamedTuple):
    """Arrays whose ghost cells an exchange fills, the exchange, and the function that begins it."""

    arrays: tuple[Any, ...]
    exchange: Callable[[], Any]
    begin: Callable[[], Work]

    def has(self, arrays: Sequence[Any]) -> bool:
        """Whether these are the arrays."""
        return [*map(id, arrays)] == [*map(id, self.arrays)]


class Halo:
    """Fills the ghost cells of arrays from the neighbors' blocks. Made by `Grid.halo`.

    Calling it is collective over the grid. On host arrays the call blocks until the cells are filled; on device arrays
    it is put on the current stream.
    """

    __slots__ = ("_bind", "_last", "_planned", "_work")

    def __init__(self, bind: Callable[[Sequence[Any]], _Bound], planned: _Bound) -> None:
        self._bind, self._planned, self._last = bind, planned, planned
        self._work: Work | None = None

    def __call__(self, u: Any = None, async_op: bool = False) -> Work | None:
        """Fill the ghost cells.

        Parameters
        ----------
        u : array, or list of arrays, optional
            The array with the ghost cells, of the shape, dtype and strides that were planned. None is the array that
            was planned, and not a new array that ``u = u + 1`` has made. Ranks may differ in which array they give.
        async_op : bool
            Return a `hpccomm.Work` at once. Until you have waited for it, do not use the ghost cells, and do not write
            to the cells that a neighbor gets.

        Raises
        ------
        UsageError
            If the `hpccomm.Work` of the previous call is not done, or u is not like the planned array.
        CommunicationError
            If the call fails or its deadline passes.
        """
        if isinstance(u, int):  # async_op as the first argument, which it was in earlier versions
            u, async_op = None, u
        if self._work is not None:
            if not self._work.done():
                raise UsageError("this halo is under way; wait for its Work before the next call")
            self._work = None
        check_bool("async_op", async_op)
        bound = self._planned
        if u is not None and not bound.has(arrays := _listed(u)):
            if not self._last.has(arrays):
                self._last = self._bind(arrays)
            bound = self._last
        if async_op:
            self._work = bound.begin()
            return self._work
        bound.exchange()
        return None


def _listed(u: Any) -> Sequence[Any]:
    return u if isinstance(u, list) and u else [u]


def plan_halo(
    grid: GridPlaces,
    core: Core,
    u: Any,
    width: Width,
    corners: bool,
    axes: Sequence[int] | None,
    timeout: float | None,
) -> Halo:
    """Plan the exchange that fills the ghost cells of arrays; see `Grid.halo`. Collective; blocks."""
    error, asked, limit = None, dict[str, object](), 0.0
    neighbors = grid.neighbors
    blocks, calls, parts = list[_Block](), list[Call](), list[HaloPart]()
    try:
        limit = core.limit(timeout)
        widths = _widths(width, len(neighbors))
        for each in _listed(u):
            blocks.append(_block(core, neighbors, each, widths, axes))
        asked = {"width": widths, "corners": check_bool("corners", corners)}
        asked["arrays"] = [(each.dtype, each.axes, each.lane.memory) for each in blocks]
        calls, parts = _exchange(blocks, corners)
    except UsageError as refused:
        error = refused
    with core.outside_batch("halo"):
        core.agree("halo", asked, error)
        with core.calls.part_of("halo"):
            own = json.dumps([each.shape for each in blocks]).encode()
            every = [json.loads(each) for each in core.control.all_gather(own)]
            for block, shapes in zip(blocks, zip(*every, strict=True), strict=True):
                _compare(grid, block.axes, shapes)
        whole, transport, tagged = agreed(core, calls, parts=parts)
    likes = [each.like for each in blocks]

    def bound(arrays: Sequence[Any], whole: Call) -> _Bound:
        ways = [carrying_out(core, None, whole, limit, async_op=each) for each in (False, True)]
        return _Bound(tuple(arrays), *ways)

    def bind(arrays: Sequence[Any]) -> _Bound:
        """Return the exchange for other arrays, by messages with the same tags. Local."""
        with core.outside_batch("halo"):
            blocks = [_block(core, neighbors, each, widths, axes) for each in arrays]
            if [each.like for each in blocks] != likes:
                raise UsageError(
                    f"u has (dtype, shape, strides, memory) {[each.like for each in blocks]}, and {likes} was planned; "
                    "give such arrays, or plan another halo"
                )
            own, parts = _exchange(blocks, corners)
            own = [replace(a, tags=b.tags) for a, b in zip(own, tagged, strict=True)]
            return bound(arrays, own[0].prepared.lane.planned(own[0], own, transport, parts))

    return Halo(bind, bound(_listed(u), whole))


class _Block(NamedTuple):
    """A checked array: a rank's block, with ghost cells around it."""

    array: Any
    lane: Lane
    dtype: str
    shape: tuple[int, ...]
    axes: tuple[int, ...]
    widths: list[tuple[int, int]]
    neighbors: Neighbors
    rank: int
    like: tuple[Any, ...]


def _block(
    core: Core, neighbors: Neighbors, u: Any, widths: list[tuple[int, int]], axes: Any
) -> _Block:
    """Check an array, and return it as a block."""
    seen: Any = view(u, "u")
    lane, _, _ = core.lanes.views(u, None)
    check_dtype("u", seen.dtype)
    on_device = isinstance(seen, DeviceArray)
    if not (seen.writable if on_device else seen.flags.writeable):
        raise UsageError("u is read-only, and its ghost cells would be written; give a copy")
    axes = _axes(axes, seen.shape, len(neighbors))
    for axis, width, beside in zip(axes, widths, neighbors, strict=True):
        least = 0 if beside == (None, None) else max(width)
        if seen.shape[axis] - sum(width) < least:
            raise UsageError(
                f"u has shape {seen.shape}, and along axis {axis} {sum(width)} of its cells are ghost cells; a "
                f"neighbor needs {least} others: give larger blocks, fewer ranks along the axis, or a smaller width"
            )
    return _Block(
        u if on_device else seen,
        lane,
        str(seen.dtype),
        seen.shape,
        axes,
        widths,
        neighbors,
        core.backend.rank,
        (str(seen.dtype), seen.shape, seen.contiguous if on_device else seen.strides, lane.memory),
    )


def _exchange(blocks: Sequence[_Block], corners: bool) -> tuple[list[Call], list[HaloPart]]:
    """Return the messages and their parts: with `corners` a part for each axis in turn, else one part for all axes."""
    order = range(len(blocks[0].axes))[::-1]  # the last faces are whole rows, which are contiguous
    calls, done, parts = list[Call](), list[int](), list[HaloPart]()
    before, after = list[tuple[Any, Any]](), list[tuple[Any, Any]]()
    for together in [(each,) for each in order] if corners else [tuple(order)]:
        begin = len(calls)
        for block, number in product(blocks, together):
            calls += _messages(block, number, done, before, after)
        done += together
        if len(calls) > begin:
            parts.append(HaloPart(len(calls) - begin, before, after))
            before, after = [], []
        elif parts:  # copies alone
            parts[-1] = parts[-1]._replace(after=[*parts[-1].after, *before])
            before = []
    if not calls:
        calls.append(blocks[0].lane.message(MessageRequest("recv", keep=(None,))))
        parts = [HaloPart(1, before, after)]
    return calls, parts


def _messages(
    block: _Block, number: int, done: Sequence[int], before: list[Any], after: list[Any]
) -> Iterator[Call]:
    """Yield the messages across the faces of one axis of the grid. Faces include the ghost cells of the axes in `done`.

    Pairs of target and source that are copied before and after the messages are added to `before` and `after`.
    """
    where = [slice(None)] * len(block.shape)
    for each, axis in enumerate(block.axes):
        starts, ends = (
            0 if each in done and peer is not None else width
            for peer, width in zip(block.neighbors[each], block.widths[each], strict=True)
        )
        where[axis] = slice(starts, block.shape[axis] - ends)
    (low, high), (front, back) = block.neighbors[number], block.widths[number]
    axis, end = block.axes[number], block.shape[block.axes[number]]
    # The order is the same on all ranks. It tells the faces apart if both neighbors are the same rank.
    for name, peer, start, stop in (
        ("send", low, front, front + back),
        ("recv", high, end - back, end),
        ("send", high, end - back - front, end - back),
        ("recv", low, 0, front),
    ):
        where[axis] = slice(start, stop)
        cells = block.array[tuple(where)]
        seen: Any = view(cells, "u")
        if peer is None or not seen.nbytes:
            continue
        if peer == block.rank:  # the axis is periodic, and one rank wide
            if name == "send":
                own = cells
            else:
                before.append((cells, own))
            continue
        keep = cells
        if isinstance(seen, DeviceArray):
            if not seen.contiguous:
                keep = empty_like_kind(cells, seen.shape, seen.dtype)
                seen = view(keep, "u")
                pair = (keep, cells)
                before.append(pair) if name == "send" else after.append(pair[::-1])
        elif seen.flags.c_contiguous:
            seen = seen.reshape(-1)
        request = MessageRequest(name, keep=(keep,))
        if name == "send":
            request = request._replace(source=seen, to=peer)
        else:
            request = request._replace(target=seen, origin=peer)
        yield block.lane.message(request)


def _compare(grid: GridPlaces, axes: Sequence[int], shapes: Sequence[list[int]]) -> None:
    """Raise unless the faces of all neighbors have the same shape. `shapes` holds the shape of each rank's block."""
    for number, axis in enumerate(axes):
        ranks = np.moveaxis(grid.ranks, number, 0)
        beside = zip(ranks, np.roll(ranks, -1, 0), strict=True)
        for each, after in [*beside][: None if grid.periodic[number] else -1]:
            for rank, other in zip(each.ravel().tolist(), after.ravel().tolist(), strict=True):
                one, next_one = shapes[rank], shapes[other]
                if one[:axis] != next_one[:axis] or one[axis + 1 :] != next_one[axis + 1 :]:
                    raise RankMismatch(
                        f"halo: u has shape {tuple(one)} on rank {rank} and {tuple(next_one)} on rank {other}, its "
                        f"neighbor along axis {number}; give blocks that differ along axis {axis} alone",
                        ranks=(rank, other),
                    )


def _widths(width: Width, count: int) -> list[tuple[int, int]]:
    """Return the number of ghost cells before and after the block, for each axis."""
    each = width if isinstance(width, tuple | list) else [width] * count
    sides = [tuple(one) if isinstance(one, tuple | list) else (one, one) for one in each]
    if len(sides) != count or any(len(one) != 2 for one in sides):
        raise UsageError(
            f"width is {width!r}; give a number of cells, or for each of the grid's {count} axes one or "
            "a pair, such as (1, (0, 2))"
        )
    widths = [(check_int("width", before), check_int("width", after)) for before, after in sides]
    if min(map(min, widths)) < 0:
        raise UsageError(f"width is {width!r}; give numbers from 0")
    return widths


def _axes(axes: Any, shape: Sequence[int], count: int) -> tuple[int, ...]:
    """Return the axes of an array that the grid divides."""
    try:
        chosen = normalize_axis_tuple(range(len(shape)) if axes is None else axes, len(shape))
    except (TypeError, ValueError):
        chosen = ()
    if len(chosen) != count:
        raise UsageError(
            f"axes is {axes!r} for u of shape {tuple(shape)} and a grid of {count} axes; give the axis of u for each "
            "of them, such as (0, 1)"
        )
    return chosen
