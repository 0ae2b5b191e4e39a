"""What the forms of a call share is the same in all of them, and nothing that interrupts a call leaves it behind."""

import ast
import random
import re
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

import hpccomm
from hpccomm.calls.lanes import streams
from hpccomm.runtime import callpath

FORMS = {"issue", "on a stream", "begin", "start_record", "ended"}
TURNS = {"carried", "taking_turn", "one_call"}


def functions() -> dict[str, ast.FunctionDef]:
    """Return the forms by name; of two with one name, the inner one."""
    found = {}
    for module, names in ((callpath, FORMS | TURNS), (streams, {"issue"})):
        for each in ast.walk(ast.parse(Path(module.__file__).read_text())):
            if isinstance(each, ast.FunctionDef) and each.name in names:
                found["on a stream" if module is streams else each.name] = each
    return found


def statements(function: ast.AST) -> Iterator[str]:
    """Yield the statements, also those within others, without what is a form's own."""
    for each in ast.walk(function):
        if isinstance(each, ast.stmt):
            text = re.sub(r", \w+, calls\.site", ", MODE, calls.site", ast.unparse(each))
            yield text.replace("self.nbytes", "nbytes").replace("self.mark", "mark")


BEGINS = [
    "calls.sequence = sequence = calls.sequence + 1",
    "begin = perf_counter()",
    "entry = [calls.origin, sequence, number, label, MODE, calls.site, begin, timeout, None, None]",
    "calls.record(entry)",
]
NUMBERS = [
    "calls.number = number = calls.number + 1",
    "calls.digest = (calls.digest * 9 ^ mark) & DIGEST",
]
COUNTS = ["tally.calls += 1", "tally.nbytes += nbytes", "tally.seconds += elapsed"]
TAKES = [
    "free = False",
    "try:\n    del turn[0]\n    free = True\nexcept KeyError:\n    pass",
    "if free:\n    turn[0] = True",
    "if gate.error is None and (calls.current is not None or error.__class__ is RecursionError):\n"
    "    calls.closed, calls.current = (LEFT, None)",
]


def test_what_the_forms_of_a_call_share_is_the_same_in_each():
    found = {name: [*statements(each)] for name, each in functions().items()}
    assert found.keys() == FORMS | TURNS

    def shared(names: set[str], lines: list[str]) -> None:
        for name in names:
            assert [each for each in found[name] if each in lines] == lines, name

    shared(FORMS - {"ended"}, BEGINS)
    shared(FORMS - {"ended"}, NUMBERS)
    shared(FORMS - {"start_record"}, COUNTS)
    for name in TURNS:
        assert set(TAKES) < set(found[name]), name
    # Nothing is called between where others see the record and the try: a signal's handler might raise there.
    for name in FORMS - {"ended", "start_record", "begin"}:
        body = functions()[name].body
        (seen,) = [
            i
            for i, each in enumerate(body)
            if ast.unparse(each).endswith(".current = entry")
            or ast.unparse(each) == "pending.entered = entry"
        ]
        assert isinstance(body[seen + 1], ast.Try), name


@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (2, 0, 3)])
def test_arrays_of_any_shape_take_the_short_way(shape):
    x, out = np.full(shape, 2.0), np.empty(shape)
    with hpccomm.new_comm(backend="loopback") as comm:
        for _ in range(3):
            assert comm.all_reduce(x, out=out) is out
            np.testing.assert_array_equal(out, x)
            assert comm.all_reduce(x, out=x) is x
            comm.send_recv(x, 0, out, 0)
            np.testing.assert_array_equal(out, x)


class Stopped(BaseException):
    """As Ctrl-C's KeyboardInterrupt."""


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # in a destructor
def test_what_a_signal_raises_at_any_moment_leaves_neither_turn_nor_call_behind():
    calling = False

    def handle(*_):
        nonlocal calling
        if calling:
            calling = False
            raise Stopped

    before, rolled = signal.signal(signal.SIGALRM, handle), random.Random(1)
    comm = hpccomm.new_comm(backend="loopback")
    try:
        for _ in range(500):
            calling = True
            with suppress(Stopped):
                signal.setitimer(signal.ITIMER_REAL, rolled.uniform(2e-5, 2e-4))
                while calling:
                    comm.barrier()
            assert comm._core.calls.waiting() is None
            try:
                comm.barrier()
            except hpccomm.CommunicatorAborted:
                comm = hpccomm.new_comm(backend="loopback")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
