"""Which tests of MPI ranks mean the same on any number of them, and so run on one by default."""

from collections.abc import Callable
from typing import Any, TypeVar

import pytest
from chosen import MARKS

from hpccomm.backends.bootstrap.launch import launched

Test = TypeVar("Test", bound=Callable[..., object])

SIZES = (2, 3)
"""The numbers of ranks on which jobs/test.sh runs tests/mpi by default."""


def by_default_on(ranks: int) -> Callable[[Test], Test]:
    """Mark a test that two ranks and three show alike: without --all, it runs on so many of the two.

    On other numbers of ranks it runs as others do. It is the outermost mark, since where the test does not
    run it takes the place of those that choose cases.
    """
    launch = launched()
    elsewhere = launch is not None and launch.size in SIZES and launch.size != ranks

    def mark(test: Any) -> Any:
        if not elsewhere:
            return test
        marks = getattr(test, "pytestmark", [])
        test.pytestmark = [each for each in marks if each.name not in MARKS]
        return pytest.mark.thorough(test)

    return mark
