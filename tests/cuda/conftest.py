"""Tests of device arrays: on a machine with GPUs, or on the stand-in for CuPy that tests/standin has.

    PYTHONPATH=tests/standin python -m pytest tests/cuda
    PYTHONPATH=tests/standin mpiexec -n 2 python -m pytest --with-mpi tests/cuda
    mpiexec -n 2 python -m pytest --with-mpi tests/cuda                          where there are GPUs

In processes of their own: the stand-in is importable as ``cupy``, and other tests must not see it.
Under ``--with-mpi`` each rank runs the tests that are marked ``mpi`` or ``processes``, as one test with
one outcome (see ``mpi_ranks``); without it, all but those marked ``mpi`` run. Those marked ``standin`` need the stand-in.
What cannot run is skipped, and says why.
"""

import gc
import importlib.util
from pathlib import Path

import nccl_ranks
import pytest

# pytest takes hooks and fixtures from here by their names.
from mpi_ranks import *  # noqa: F403
from mpi_ranks import FAILED
from mpi_ranks import pytest_configure as agree_outcomes
from nccl_ranks import pinned

__all__ = ["pinned"]

HERE = Path(__file__).parent
STANDIN = HERE.parent / "standin"


def is_standin():
    """Whether ``cupy`` is the stand-in. Imports nothing."""
    found = importlib.util.find_spec("cupy")
    return found is not None and Path(found.origin or "").is_relative_to(STANDIN)


def absent():
    """Return why there are no device arrays here, or nothing."""
    from hpccomm.memory.cuda import library

    why = library.unavailable()
    return why and f"{why}; or set PYTHONPATH={STANDIN} for the stand-in"


@pytest.hookimpl(trylast=True)
def pytest_configure(config):
    """Name the marks, and bring the ranks together."""
    config.addinivalue_line("markers", "standin: needs the stand-in for CuPy")
    if not config.pluginmanager.hasplugin("pytest_mpi"):
        config.addinivalue_line("markers", "mpi: needs pytest-mpi")
    config.addinivalue_line("markers", "processes: its ranks may be threads or processes")
    nccl_ranks.in_job = bool(config.getoption("--with-mpi"))
    agree_outcomes(config)


class Skipped(pytest.Module):
    """A file of tests that is not even imported: it may import CuPy."""

    def collect(self):
        pytest.skip(absent(), allow_module_level=True)


def pytest_addoption(parser, pluginmanager):
    """Let one process do without pytest-mpi."""
    if not pluginmanager.hasplugin("pytest_mpi"):
        parser.addoption("--with-mpi", action="store_const", const=False, help="takes pytest-mpi")


def pytest_pycollect_makemodule(module_path, parent):
    """Skip all files, with the reason, where there is nothing to test."""
    return Skipped.from_parent(parent, path=module_path) if absent() else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Leave out what is for another kind of run."""
    ranks = config.getoption("--with-mpi")
    with_mpi = config.pluginmanager.hasplugin("pytest_mpi")
    # A communicator that failed over CUDA-aware MPI keeps NCCL from the device: those come last.
    items.sort(key=lambda item: "[mpi-" in item.name or "-mpi]" in item.name)
    for item in items:
        if not item.path.is_relative_to(HERE):
            continue
        if item.get_closest_marker("standin") and not is_standin():
            item.add_marker(pytest.mark.skip(reason="needs the stand-in: a fault is planted in it"))
        if ranks and not any(map(item.get_closest_marker, ("mpi", "processes"))):
            item.add_marker(pytest.mark.skip(reason="is for one process"))
        if not with_mpi and item.get_closest_marker("mpi"):
            item.add_marker(pytest.mark.skip(reason="needs pytest-mpi"))


@pytest.fixture(autouse=True, scope="module")
def few_objects():
    """Have garbage collections pass by all that exists: they take far less long."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True)
def rules_are_kept(request, made):
    """Fail what the real CUDA or NCCL would have answered with a crash or with wrong bytes."""
    if "comm" not in request.fixturenames:
        end(made)  # the test may make what may not be beside it
    if not is_standin():
        yield
        return
    from standin import control, graphs

    del control.violations[:]
    control.forget_nccl()
    yield
    del control.watchers[:]
    graphs.forget()  # a test may fail in a capture, or do what hpccomm's threads do, which stay relaxed
    broken, control.violations[:] = list(control.violations), []
    assert not broken, "\n".join(broken)


@pytest.fixture
def seen():
    """Give what is called of CUDA and NCCL from now on: names and arguments, of those that the stand-in tells."""
    from standin import control

    found = []
    control.watchers.append(lambda *of: found.append(of))
    return found


@pytest.fixture
def interrupted():
    """Give ``interrupted(name, what)``, which has something happen just before a function's next call."""
    from standin import control

    def at(name, what):
        def watch(called, *arguments):
            if called == name and watch in control.watchers:
                control.watchers.remove(watch)
                what(*arguments)

        control.watchers.append(watch)

    return at


@pytest.fixture
def nccl_made():
    """Give what returns the stand-in's NCCL communicators that were made since then and have not ended."""
    from standin.nccl import calls

    before = {*calls.all_communicators()}
    return lambda: [each for each in calls.all_communicators() if each not in before]


@pytest.fixture
def late(monkeypatch):
    """Have the stand-in's streams do their work late, by up to some milliseconds at random."""
    monkeypatch.setenv("STANDIN_DELAY", "0.005")


@pytest.fixture(scope="session")
def made():
    """Keep a communicator from test to test, by its way of device arrays: making it takes long.

    One at a time, as NCCL and MPI may not have a device at once.
    """
    kept = {}
    yield kept
    end(kept)


def end(kept):
    """Finalize what is kept; collective."""
    while kept:
        kept.popitem()[1].finalize()


@pytest.fixture
def comm(request, made, way, monkeypatch):
    """Give a communicator over all ranks whose device arrays go by `way`, a test's argument."""
    # For those as well that the test makes beside it.
    monkeypatch.setenv("HPCCOMM_CUDA_AWARE", str(int(way == "mpi")))
    if way not in made:
        end(made)
        made[way] = make(way)
    yield made[way]
    if request.node.stash.get(FAILED, False):
        made.pop(way).abort()


def make(way):
    """Make a communicator; collective."""
    from mpi4py import MPI

    import hpccomm

    if way == "mpi" and not is_standin():  # for which any MPI will do: its memory is the host's
        from hpccomm.backends.bootstrap.cuda_aware import aware

        told, why = aware(MPI, None)
        if not told:
            pytest.skip(f"no CUDA-aware MPI: {why}")
    comm = hpccomm.new_comm("nccl" if way == "nccl" else "mpi", timeout=60.0)
    assert comm.backends["cuda"] == way, comm.backends
    return comm
