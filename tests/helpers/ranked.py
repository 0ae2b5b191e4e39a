"""Tests of what each rank does: a decorator gives each rank its communicator, and pytest the rest."""

import inspect
from collections.abc import Callable
from functools import partial, update_wrapper

from hpccomm.testing import run_ranks


def on_threads(n, **how):
    """Make a test of what each of `n` threads does, given its communicator and the test's fixtures.

    `how` is for `run_ranks`.
    """
    return each_rank(lambda test: run_ranks(n, test, **how))


def each_rank(run: Callable[[Callable[..., None]], object], given=1):
    """Return a decorator of tests that ranks carry out: ``run(what a rank does)`` has them do it.

    A rank gives the test its first arguments, which are so many, and pytest the others.
    """

    def decorated(test):
        def fixed(**fixtures):
            run(partial(test, **fixtures))

        update_wrapper(fixed, test)  # with pytest's marks
        found = inspect.signature(test)
        fixed.__signature__ = found.replace(parameters=[*found.parameters.values()][given:])
        return fixed

    return decorated
