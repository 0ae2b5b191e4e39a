"""The path of a call is written once; the generated functions behave like hand-written ones."""

import ast
import linecache
import random
import signal
from collections import Counter
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

import hpccomm
from hpccomm.communicator.lanes import issuing
from hpccomm.runtime import callpath

FORMS = {
    **{
        name: getattr(callpath, name)
        for name in ("BLOCKED", "SPUN", "STARTED", "PLAN", "EXCHANGED")
    },
    "messages": callpath.SPUN._replace(ordered=False),
    "on a stream": issuing.ON_STREAM,
}
TURN = ("del turn[0]", "turn.append(True)")
CALL = (
    "calls.number = number = calls.number + 1",
    "calls.digest = (calls.digest * 9 ^ fingerprint) & DIGEST",
    "record(entry)",
    "pre(reports.info(entry))",
    "calls.compare(label, entry)",
    "tally.calls += 1",
    "tally.nbytes += nbytes",
    "tally.seconds += elapsed",
)


def statements(source):
    """Return the simple statements of a source, as Python writes them, with how often each stands there."""
    simple = (ast.Assign, ast.AugAssign, ast.Delete, ast.Expr)
    return Counter(
        ast.unparse(each) for each in ast.walk(ast.parse(source)) if isinstance(each, simple)
    )


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_each_statement_of_a_call_stands_once(form):
    found = statements(form.source())
    assert all(found[each] == form.planned for each in TURN)
    assert found["record(entry)"] == found["tally.calls += 1"] == 1
    repeats = {each for each, times in found.items() if times > 1}
    assert repeats <= {"pending.entered = None"}  # what was put on a stream has no record under way


@pytest.mark.parametrize("statement", [*TURN, *CALL])
def test_each_statement_of_the_path_stands_once_in_the_whole_source(statement):
    assert any(statement in statements(form.source()) for form in FORMS.values())
    sources = [
        file.read_text(encoding="utf-8") for file in Path(hpccomm.__file__).parent.rglob("*.py")
    ]
    assert sum(source.count(statement) for source in sources) == 1


def test_a_traceback_shows_the_generated_line_and_the_record_the_programs():
    with hpccomm.new_comm(backend="loopback") as comm:
        comm.register_pre_hook(lambda info: 1 / 0)
        with pytest.raises(ZeroDivisionError) as raised:
            comm.all_reduce(np.ones(3))
    entry = next(each for each in raised.traceback if "callpath.py: polled" in str(each.path))
    file, line = entry.frame.code.raw.co_filename, entry.lineno + 1
    assert linecache.getline(file, line).strip().startswith("calls.failed(")


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
