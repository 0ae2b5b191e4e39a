"""A call made within another call of the same communicator is refused with a working remedy."""

import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from alone import python
from conftest import HEAD
from ranked import on_threads

import hpccomm
from hpccomm import UsageError
from hpccomm.communicator import objects
from hpccomm.testing import run_ranks


class Pickled:
    """An object whose pickling makes a call."""

    def __init__(self, call) -> None:
        self.call = call

    def __reduce__(self):
        self.call()
        return (int, ())


def by_a_hook(comm, call) -> None:
    comm.register_pre_hook(lambda _: call())
    comm.all_reduce(np.zeros(3))


def by_an_object(comm, call) -> None:
    comm.broadcast_object(Pickled(call))


def by_a_fold(comm, call) -> None:
    def add(a, b):
        call()
        return a + b

    comm.all_reduce(np.zeros(3), add)


def by_a_signal(comm, call) -> None:
    before = signal.signal(signal.SIGUSR2, lambda *_: call())
    hook = comm.register_post_hook(lambda _: os.kill(os.getpid(), signal.SIGUSR2))
    comm.all_reduce(np.zeros(3))
    hook.close()
    signal.signal(signal.SIGUSR2, before)


@pytest.mark.parametrize("lead", [by_a_hook, by_an_object, by_a_fold, by_a_signal])
def test_a_call_within_a_call_is_refused_as_such(lead) -> None:
    said = []

    def program(comm) -> None:
        def call() -> None:
            if not said:  # hooks are called for the other calls too
                said.append("")
                with pytest.raises(UsageError) as refused:
                    comm.barrier()
                said[0] = str(refused.value)

        lead(comm, call)
        comm.barrier()  # the communicator goes on

    if lead is by_a_signal:  # Python runs their handlers in the main thread
        with hpccomm.new_comm("loopback") as comm:
            program(comm)
    else:
        run_ranks(2, program)
    (text,) = said
    assert "another thread" not in text
    assert f"{lead.__name__}(), {Path(__file__).name} line" in text
    assert "when the call has returned" in text


@on_threads(1)
def test_one_of_another_thread_is_still_refused_as_that(comm) -> None:
    def hook(_) -> None:
        handle.close()
        with ThreadPoolExecutor() as pool, pytest.raises(UsageError, match="another thread"):
            pool.submit(comm.barrier).result()

    handle = comm.register_pre_hook(hook)
    comm.barrier()


def test_a_forked_child_is_refused_and_not_advised_to_make_a_new_one() -> None:
    program = """
comm, hooked = hpccomm.new_comm("loopback"), []
comm.register_abort_hook(hooked.append)
work = comm.recv(np.zeros(1), 0, async_op=True)
plan = comm.plan("all_reduce", np.zeros(3))
child = os.fork()
if not child:
    for call in comm.barrier, work.wait, plan:
        try:
            call()
        except hpccomm.CommunicatorAborted as error:
            print(error, flush=True)
    os._exit(len(hooked))
assert os.waitpid(child, 0)[1] == 0
comm.send(np.ones(1), 0)
assert work.wait() == 1
"""
    done = python("-c", HEAD + program)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 3, done.stderr
    for line in lines:
        assert "forked" in line
        assert "communicate there" in line
        assert "make a new one" not in line


class OwnArguments(Exception):
    """An exception with arguments of its own, which pickle makes anew with its message."""

    def __init__(self, where: str, size: int) -> None:
        super().__init__(f"{size} bytes at {where}")


class Restored:
    """An object that cannot be restored."""

    def __getstate__(self):
        return {"size": 1}

    def __setstate__(self, state) -> None:
        self.size = self.missing


class Lacking:
    def __reduce__(self):
        return (__import__, ("of_another_rank",))  # as where a rank lacks a package


def absent() -> object:
    """Make an object of a class that the receiver's module does not have."""
    module = sys.modules["absent"] = ModuleType("absent")
    exec("class Absent: pass", module.__dict__)
    return module.Absent()


@pytest.mark.parametrize(
    ("make", "told", "untold"),
    [
        (lambda: OwnArguments("the disk", 3), "__reduce__", "importable"),
        (Restored, "__reduce__", "importable"),
        (Lacking, "importable", "__reduce__"),
        (absent, "importable", "__reduce__"),
    ],
)
def test_what_cannot_be_unpickled_is_told_with_its_cause(make, told, untold) -> None:
    frame = objects.dump(make())
    vars(sys.modules.get("absent", objects)).pop("Absent", None)
    with pytest.raises(UsageError, match="cannot be unpickled here") as refused:
        frame.load(0)
    assert told in str(refused.value)
    assert untold not in str(refused.value)
