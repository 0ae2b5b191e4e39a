"""Makes one test of the same test on all ranks of an MPI job. For a conftest.py to import.

After each phase of a test (setup, call, teardown) all ranks tell each other how it ended. A test
that failed on one rank failed on all of them, so no rank goes on alone and meets the others in
another test. Rank 0 reports for all. A rank that does not come to the end of a phase is stopped by
faulthandler, which shows its stack; the ranks that wait for it hold out a little longer, so that
they do not take the job down before that.
"""

import faulthandler
import os
import signal
import tempfile
import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hpccomm.runtime.service import before_end

if TYPE_CHECKING:
    from _pytest.capture import CaptureManager
    from mpi4py import MPI

__all__ = [
    "FAILED",
    "mpi_comm",
    "pytest_collection_finish",
    "pytest_configure",
    "pytest_exception_interact",
    "pytest_runtest_makereport",
    "pytest_terminal_summary",
]

GRACE = 5.0
"""Seconds that a rank waits for the others beyond the time limit of a phase."""

PATIENCE = 1.0
"""Seconds after which a rank that failed and waits in vain shows its failure itself."""


@dataclass(frozen=True)
class Outcome:
    """How something ended on one rank."""

    what: str
    kind: str
    text: str


class Agreement:
    """All ranks of the job, at the end of one phase after the other."""

    def __init__(self, config: pytest.Config) -> None:
        from mpi4py import MPI

        self.comm = MPI.COMM_WORLD.Dup()
        self.time_limit = float(config.getini("faulthandler_timeout") or 0.0)
        # Under capture, descriptor 2 is a file of pytest's.
        with config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
            self.stderr = os.dup(2)
        # The launcher ends the whole job as soon as one rank stops: show where the others were.
        faulthandler.register(signal.SIGTERM, file=self.stderr, chain=True)

    def limit(self) -> None:
        """From now on this rank has the time limit's seconds until it exchanges again."""
        if self.time_limit:
            faulthandler.dump_traceback_later(self.time_limit, file=self.stderr, exit=True)

    def exchange(self, mine: Outcome) -> list[Outcome]:
        """Return every rank's outcome. Collective; ends the process when a rank does not come."""
        faulthandler.cancel_dump_traceback_later()
        arrival = self.comm.Ibarrier()
        start = time.monotonic()
        to_tell = mine.kind == "failed"
        while not arrival.Test():
            waited = time.monotonic() - start
            if to_tell and waited > PATIENCE:
                to_tell = False
                self.say(f"{mine.what} failed here, and other ranks have not ended:\n{mine.text}")
            if self.time_limit and waited > self.time_limit + GRACE:
                self.say(f"{mine.what}: {mine.kind} here, but other ranks did not end in time")
                os._exit(1)
            if waited > 0.001:
                time.sleep(0.0005)
        return self.comm.allgather(mine)

    def say(self, text: str) -> None:
        """Write to this rank's own standard error, past pytest's capture."""
        os.write(self.stderr, f"\n[rank {self.comm.rank}] {text}\n".encode())


AGREEMENT = pytest.StashKey[Agreement]()
FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Bring the ranks together, and silence all but rank 0."""
    if config.getoption("--with-mpi"):
        config.stash[AGREEMENT] = agreement = Agreement(config)
        # pytest prunes old folders below this: ranks would prune each other's, and trip over that.
        own = Path(tempfile.gettempdir()) / f"rank-{agreement.comm.rank}"
        own.mkdir(exist_ok=True)
        os.environ["PYTEST_DEBUG_TEMPROOT"] = str(own)
        if agreement.comm.rank:
            config.pluginmanager.unregister(name="terminalreporter")
        before_end(partial(let_out, config.pluginmanager.getplugin("capturemanager")))


def let_out(capture: "CaptureManager") -> None:
    """Print what pytest has captured of this rank, which hpccomm ends, and have its last words follow."""
    capture.suspend()
    for descriptor, text in enumerate(capture.read_global_capture(), 1):
        os.write(descriptor, text.encode(errors="backslashreplace"))


@pytest.hookimpl(wrapper=True)
def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter,
) -> Generator[None, None, None]:
    """Print the summary without NUL: Open MPI's version ends in one, and logs become binary files."""
    write = terminalreporter.write
    terminalreporter.write = lambda text, **how: write(text.replace("\0", ""), **how)
    yield
    terminalreporter.write = write


def pytest_collection_finish(session: pytest.Session) -> None:
    """Refuse to start where the ranks do not see the same tests."""
    agreement = session.config.stash.get(AGREEMENT, None)
    if agreement is None:
        return
    seen = "\n".join(item.nodeid for item in session.items)
    kind = "failed" if session.testsfailed else "collected"
    outcomes = agreement.exchange(Outcome("collection", kind, seen))
    if len(set(outcomes)) > 1:
        raise pytest.UsageError(
            "the ranks collected different tests: "
            + ", ".join(
                f"rank {rank} {outcome.kind} {len(outcome.text.splitlines())}"
                for rank, outcome in enumerate(outcomes)
            )
        )


def pytest_exception_interact(node: pytest.Item | pytest.Collector) -> None:
    """Start the time limit again, which pytest's faulthandler plugin ends on every failure."""
    agreement = node.config.stash.get(AGREEMENT, None)
    if agreement is not None and isinstance(node, pytest.Item):
        agreement.limit()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Make one outcome of all ranks' outcomes of a phase."""
    report = yield
    agreement = item.config.stash.get(AGREEMENT, None)
    if agreement is None:
        return report
    kind = "xfailed" if report.skipped and hasattr(report, "wasxfail") else report.outcome
    text = "\n".join(
        [report.longreprtext, *(f"--- {name} ---\n{content}" for name, content in report.sections)]
    )
    outcomes = agreement.exchange(Outcome(f"{report.when} of {report.nodeid}", kind, text))
    if len({outcome.what for outcome in outcomes}) > 1:
        agreement.say("the ranks run different tests: " + ", ".join(o.what for o in outcomes))
        os._exit(1)

    kinds = [outcome.kind for outcome in outcomes]
    if "failed" in kinds or len(set(kinds)) > 1:
        item.stash[FAILED] = True
        if kind != "failed":
            report.outcome = "failed"
            report.longrepr = "\n".join(
                [
                    f"{kind} on rank {agreement.comm.rank}, but not on all:",
                    *(f"  rank {rank}: {each}" for rank, each in enumerate(kinds)),
                ]
            )
        report.sections += [
            (f"rank {rank}: {outcome.kind}", outcome.text)
            for rank, outcome in enumerate(outcomes)
            if rank != agreement.comm.rank and outcome.text
        ]
    agreement.limit()
    return report


@pytest.fixture
def mpi_comm(request: pytest.FixtureRequest) -> Iterator["MPI.Comm"]:
    """Give a duplicate of COMM_WORLD that no other test uses."""
    from mpi4py import MPI

    comm = MPI.COMM_WORLD.Dup()
    yield comm
    # After a failure messages may still be under way: freeing it could block.
    if not request.node.stash.get(FAILED, False):
        comm.Free()
