"""The suite's assertions: equal arrays, and errors with the right message."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from hpccomm.dtypes import NARROW

Array = npt.NDArray[Any]


def equal(actual: object, expected: Array, what: str = "", *, rtol: float = 0.0) -> None:
    """Assert that `actual` is an array of `expected`'s shape, dtype and values.

    Parameters
    ----------
    actual : object
        The returned or written array.
    expected : ndarray
        NaN equals NaN. Structured dtypes compare field by field.
    what : str
        The subject, for the message.
    rtol : float
        Relative tolerance; 0 asks for equal values. A case that passes more says why.
    """
    note = f"{what or 'result'}: "
    assert isinstance(actual, np.ndarray), f"{note}{type(actual).__name__}, expected an array"
    assert actual.dtype == expected.dtype, f"{note}dtype {actual.dtype}, not {expected.dtype}"
    assert actual.shape == expected.shape, f"{note}shape {actual.shape}, not {expected.shape}"
    if actual.tobytes() == expected.tobytes():
        return
    if expected.dtype.names is not None:
        np.testing.assert_array_equal(actual, expected, err_msg=note)
        return
    # numpy.testing does not know bfloat16 and float8; both widen to float32 without loss.
    wide = np.dtype(np.float32) if expected.dtype in NARROW else expected.dtype
    left, right = actual.astype(wide, copy=False), expected.astype(wide, copy=False)
    if rtol:
        np.testing.assert_allclose(left, right, rtol=rtol, atol=0, err_msg=note)
    else:
        np.testing.assert_array_equal(left, right, err_msg=note)


def same_bits(actual: Array, expected: Array, what: str = "") -> None:
    """Assert that two arrays hold the same bytes, in an equal shape and dtype.

    Parameters
    ----------
    actual, expected : ndarray
        C-contiguous.
    what : str
        The subject, for the message.
    """
    equal(actual, expected, what)
    assert actual.tobytes() == expected.tobytes(), f"{what}: {actual!r}, not {expected!r}"


PATIENCE = 20.0
"""Seconds after which something that should happen by itself counts as never."""

SOON = 5.0
"""Seconds within which a failure must show; generous, for machines that do other work."""


def happens(condition: Callable[[], object], what: str, within: float = PATIENCE) -> None:
    """Wait until `condition` is true, and assert that it becomes so within some seconds."""
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline, f"not after {within:g} s: {what}"
        time.sleep(0.001)


@contextmanager
def takes(most: float = SOON, least: float = 0.0) -> Iterator[None]:
    """Assert that the block takes less than `most` seconds, and more than `least`."""
    before = time.monotonic()
    yield
    took = time.monotonic() - before
    assert least <= took < most, f"took {took:.3f} s, not from {least:g} to {most:g} s"


@contextmanager
def raises(error: type[BaseException], *words: str) -> Iterator[list[BaseException]]:
    """Assert that the block raises `error` with a message that holds each of `words`.

    Parameters
    ----------
    error : type
        The class, or one above it.
    *words : str
        Looked for in the message without regard to case.

    Yields
    ------
    list
        Holds the error after the block.
    """
    caught: list[BaseException] = []
    try:
        yield caught
    except error as exception:
        text = str(exception)
        absent = [word for word in words if word.lower() not in text.lower()]
        assert not absent, f"the message lacks {absent}: {type(exception).__name__}: {text}"
        caught.append(exception)
        return
    raise AssertionError(f"{error.__name__} was not raised")
