"""`wait_all`, `wait_any` and `wait_some`: waits for several works of any kind."""

from collections.abc import Iterable
from contextlib import ExitStack
from math import inf
from time import perf_counter
from typing import Any

from hpccomm.errors import HpccommError, UsageError, WaitTimeout, untied
from hpccomm.runtime.progress import ANY_OF, awaiting
from hpccomm.runtime.waiting import over_within
from hpccomm.runtime.work import Work, still_under_way
from hpccomm.settings import check_seconds

Works = Iterable[Work | None]


def wait_all(works: Works, timeout: float | None = None) -> list[Any]:
    """Wait until all works are over, as MPI's Waitall, and return their results.

    Parameters
    ----------
    works : iterable of Work or None
        Of any communicators, calls and kinds of memory. None has no result, and is not waited for.
    timeout : float, optional
        Seconds for all of them; 0 asks each once. None leaves each its own deadline.

    Returns
    -------
    list of object
        What `Work.wait` returns, in the order of the works.

    Raises
    ------
    WaitTimeout
        If `timeout` passes before all are over. The works and their communicators go on.
    HpccommError
        The first failure in the order of the works, once all others are over as well. A note says which work it is.
    """
    each, results, left = _checked(works), list[Any](), list[Work]()
    limit = None if timeout is None else check_seconds("timeout", timeout, zero=True)
    begun, first = perf_counter(), None
    for index, work in enumerate(each):
        if work is None:
            results.append(None)
            continue
        try:
            seconds = None if limit is None else max(0.0, limit - (perf_counter() - begun))
            results.append(work.wait(seconds))
        except WaitTimeout:
            if work.over:  # it is what has ended the call, such as a hook's error
                raise
            left.append(work)
        except HpccommError as error:
            first = first or _named(error, index, each)
    if left and limit is not None:
        raise still_under_way(left, limit)
    if first is not None:
        raise untied(first)
    return results


def wait_any(works: Works, timeout: float | None = None) -> tuple[int | None, Any]:
    """Wait until one of several works is over, as MPI's Waitany.

    Parameters
    ----------
    works : iterable of Work or None
        Of any communicators, calls and kinds of memory. Put None in the place of a work that is done with.
    timeout : float, optional
        Seconds; 0 asks each once. None leaves each work its own deadline.

    Returns
    -------
    tuple of int and object
        The place of the first work in the order of `works` that is over, and its result. Of a work on a device,
        the current stream is ordered behind it. None for both without works.

    Raises
    ------
    WaitTimeout
        If `timeout` passes. The works and their communicators go on.
    HpccommError
        The failure of that work. A note says which one it is.
    """
    each = _checked(works)
    for index in _over(each, timeout):
        return index, _result(each, index)
    return None, None


def wait_some(works: Works, timeout: float | None = None) -> list[tuple[int, Any]]:
    """Wait until at least one of several works is over, as MPI's Waitsome.

    Parameters and errors are as of `wait_any`.

    Returns
    -------
    list of tuple of int and object
        The places and the results of all works that are over. Empty without works.
    """
    each = _checked(works)
    return [(index, _result(each, index)) for index in _over(each, timeout)]


def _checked(works: Works) -> list[Work | None]:
    each = list(works)
    for index, work in enumerate(each):
        if work is not None and not isinstance(work, Work):
            raise UsageError(
                f"works[{index}] is {work!r}; give what calls with async_op=True return, or None"
            )
    return each


def _over(each: list[Work | None], timeout: float | None) -> list[int]:
    """Wait for the first works that are over, and return their places."""
    limit = inf if timeout is None else check_seconds("timeout", timeout, zero=True)
    under_way = [(index, work) for index, work in enumerate(each) if work is not None]
    engines = {engine for _, work in under_way if (engine := work.progress) is not None}
    places = list[int]()

    def poll() -> bool:
        for engine in engines:
            engine.turn()
        for _, work in under_way:
            work.keep_deadline()
        # They are not asked by `done`: what is dropped without a wait is warned of.
        places[:] = [index for index, work in under_way if work.looked()]
        return bool(places)

    if under_way and not poll():
        with ExitStack() as stack:
            for engine in engines:
                stack.enter_context(engine.attended())
            if limit == inf and all(work.progress is not None for _, work in under_way):
                stack.enter_context(awaiting([work for _, work in under_way], ANY_OF))
            if not over_within(limit, poll):
                raise still_under_way([work for _, work in under_way], limit)
    return places


def _result(each: list[Work | None], index: int) -> Any:
    work = each[index]
    assert work is not None
    try:
        return work.wait()
    except HpccommError as error:
        _named(error, index, each)
        raise


def _named(error: HpccommError, index: int, each: list[Work | None]) -> HpccommError:
    """Return an error with a note of its work's place."""
    error.add_note(f"It is the failure of works[{index}], of {len(each)}.")
    return error
