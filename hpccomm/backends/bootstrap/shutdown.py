"""Ends this process, and if needed the job: exceptions, signals, exits, MPI's finalisation.

docs/explanation/failures.rst lists the ways to leave a program, their consequences, and the handlers installed
here. `mpi` installs the handlers when it starts MPI, and ends MPI and the job by this module.
"""

import contextlib
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from types import FrameType, TracebackType
from typing import Any, NoReturn

from hpccomm.backends.bootstrap import libmpi, presence
from hpccomm.backends.bootstrap.node_sockets import refuse
from hpccomm.contracts.backend import Facts
from hpccomm.errors import HpccommError, PeerLost, WaitTimeout
from hpccomm.runtime import answering, raised
from hpccomm.runtime.dump import meaning, process
from hpccomm.runtime.recorder import PACKAGE, described, frames, in_standard, site_of
from hpccomm.runtime.service import (
    PATIENCE_SECONDS,
    Status,
    Voice,
    after_fork,
    leaving,
    on_signal,
    service,
    status_of,
    write_last,
    write_stderr,
)

ALONE_SECONDS = 2.0
"""Seconds for which a rank that exits with a status other than 0 waits in ``MPI_Finalize`` for the other ranks."""
SETTLE_SECONDS = 0.05
"""Seconds for messages under way at an exit without ``MPI_Finalize``."""
STUCK_SECONDS = 2.0
"""Seconds for which an exit with status 0 waits for silent ranks; then it ends the job."""
LAST_WORDS_SECONDS = 0.5
"""Seconds for which an end with an error waits for other ranks: for their last words, or until they leave too."""
HEARD_SECONDS = 0.1
"""Seconds for the answers of other ranks about their end."""
TERMINATED_SECONDS = 0.2
"""Seconds that a rank leaves to the others after SIGTERM: launchers kill all ranks when one is gone."""
GATHERED_SECONDS = 0.3
"""Seconds for which a rank that raises waits for the exceptions of others, to report all at once."""
FOLLOWED_SECONDS = 0.3
"""Seconds for which a rank that has lost a peer waits for the launcher, which may be ending it."""
LOOK_SECONDS = 0.25
"""Seconds between two looks at other ranks, or at a signal."""
LOST_SECONDS = 1.0
"""Seconds after which a rank that is gone will not come to ``MPI_Finalize`` any more."""
HANDLED_SECONDS = 1.0
"""Seconds after which a signal that the main thread has not handled shows that the thread is inside a library."""
TOGETHER_SECONDS = 0.5
"""Seconds by which Python may handle a signal before the service thread hears of it; it may handle two as one."""

_ending = threading.Lock()
_ender = 0  # the thread that ends the process
_lost = ""  # the words of the uncaught `PeerLost`, if there is one
_handled = -math.inf  # when the main thread last handled SIGINT, by time.monotonic
_known = 0  # the exit status after an uncaught exception
_exceptions: "_Exceptions | None" = None


def watch_exceptions(mpi: Any) -> None:
    """Take note of uncaught exceptions from now on. Call it once in a process; Python still handles them as usual."""
    global _exceptions
    _exceptions = _Exceptions(mpi)


def installed() -> bool:
    """Whether an uncaught exception ends the job in hpccomm's way."""
    return _exceptions is not None and _exceptions.end


def install(mpi: Any) -> None:
    """Install the handlers that end the job when this process fails.

    Call it once in a process, after `watch_exceptions`, in a job of several ranks.
    """
    assert _exceptions is not None
    Voice.before, Voice.leaves, _exceptions.end = presence.said_before, _exceptions.leaves, True
    if threading.current_thread() is threading.main_thread():
        _hook_signals(mpi.COMM_WORLD.rank)


# The ends.


@service.ends
def end_job(
    mpi: Any,
    reason: str,
    with_status: int,
    say: Callable[[], None] | None = None,
    others: dict[int, Facts] | None = None,
) -> NoReturn:
    """End all processes of the job with an exit status. From any thread.

    The launcher gets the status before the other ranks can see that this rank is gone. The rank whose exception
    came first ends the job itself, once it has come to the end of its program. This rank waits for that, and takes
    that rank's status. Then it calls `say`, which prints why. `others` has the exceptions of the other ranks, if
    they have been asked already.
    """
    words, own = f"rank {mpi.COMM_WORLD.rank} ends the job: {reason}", answering.noted("raised")
    first = presence.first(presence.raised(0.0) if others is None else others, own)
    if (
        first is not None
        and first is not own
        and (with_status == Status.ENDED if own is None else raised.follows(own, first))
    ):
        presence.await_end(first["order"], PATIENCE_SECONDS)
        with_status = first["status"] if first["own"] else with_status
    if say is not None:
        say()
    _begin(with_status, words)
    if presence.said_before("that it ends the job", end=words):
        # The rank that said so first may still be about to write why. It ends this rank.
        time.sleep(LAST_WORDS_SECONDS)
    else:
        write_stderr(f"hpccomm: {words}{meaning()}")
    libmpi.abort(mpi, with_status)
    os._exit(with_status)


@service.ends
def end_process(last_words: str, with_status: int) -> NoReturn:
    """End this process at once. The launcher ends the job if the status asks for that. From any thread."""
    begun = time.monotonic()
    _begin(with_status, last_words)
    together = with_status in (Status.TERMINATED, Status.INTERRUPTED)  # usually on all ranks
    if not together or presence.said_before("that it ends", HEARD_SECONDS) < presence.MOST_WORDS:
        write_stderr(last_words)
    if with_status == Status.TERMINATED:
        time.sleep(max(0.0, begun + TERMINATED_SECONDS - time.monotonic()))
    os._exit(with_status)


def _begin(with_status: int, last_words: str) -> None:
    """Begin the end of this process; `PATIENCE_SECONDS` later it ends in any case.

    The first call counts. A call of another thread waits for that end.
    """
    global _ender
    if not _ending.acquire(blocking=False):
        if not _ends_here():
            time.sleep(2 * PATIENCE_SECONDS)
        os._exit(with_status)
    _ender = threading.get_ident()
    process.ended = last_words.removeprefix("hpccomm: ")
    with contextlib.suppress(RuntimeError):  # too late for threads
        patience = threading.Timer(PATIENCE_SECONDS, os._exit, (with_status,))
        patience.daemon = True
        patience.start()
    write_last(with_status)


def _ends_here() -> bool:
    """Whether this thread is already ending the process: then the caller returns."""
    return _ender == threading.get_ident()


@after_fork
def _after_fork() -> None:
    global _ending, _ender
    _ending, _ender = threading.Lock(), 0


# Finalisation.


def finalize(mpi: Any, *, ours: bool, failed: bool, seconds: float) -> None:
    """Finalise MPI, at exit.

    Parameters
    ----------
    mpi : module
        ``mpi4py.MPI``.
    ours : bool
        Whether hpccomm has started MPI. If not, and MPI is not finalised here, mpi4py finalises it when Python's
        objects are gone.
    failed : bool
        Whether a communicator has failed. Then ``MPI_Finalize`` might wait for ever, or meet unfinished
        communication. So the process leaves without it, if its launcher lets it (PMIx) and mpi4py would not finalise
        MPI afterwards. It ends the job if ranks of its node are stopped or do not answer. It also ends the job
        if its status is known not to be 0 and other ranks go on.
    seconds : float
        Most seconds that ``MPI_Finalize`` may take.
    """
    status = known()
    if failed:
        _settle(mpi)
        if status == 0 and (stuck := presence.stuck(STUCK_SECONDS)):
            why = f"a communicator has failed, and the launcher would wait for ranks that do not end: {stuck}"
            # No exceptions are asked for: a rank that does not end has raised nothing.
            end_job(mpi, why, Status.ENDED, others={})
        if status and not presence.all_leave(LAST_WORDS_SECONDS) and not libmpi.survives():
            end_job(mpi, f"it exits with status {status}", status)
        told = answering.noted("raised")
        # A SystemExit that left a communicator's block likely has the status. Without one, the process goes on to
        # MPI_Finalize, which may wait for lost ranks, under ULFM for ever.
        exits = status or (told["status"] if told and told["exits"] else 0)
        if exits and not status:  # others may be about to end the job, and ask for this status
            presence.all_leave(PATIENCE_SECONDS)
        if (ours or exits or libmpi.survives()) and libmpi.sign_off():
            if not ours:  # nothing else keeps mpi4py from finalising
                leave_now(exits)
            refuse()  # the end of Python may take long, and no thread answers then
            libmpi.exit_at_once()
            return
    library = libmpi.library()
    rank = mpi.COMM_WORLD.rank
    if library is None:  # mpi4py holds the interpreter's lock, so no thread can watch its call
        if failed:
            words = f"rank {rank} cannot finalise MPI, whose library is not found, after a failure"
            end_process(f"hpccomm: {words}. It ends now", status or Status.ENDED)
        refuse()
        mpi.Finalize()
        return
    limit = min(seconds, ALONE_SECONDS) if status else seconds
    done = threading.Event()

    def watch() -> None:
        until, lost = time.monotonic() + limit, 0
        while time.monotonic() < until:
            if done.wait(LOOK_SECONDS):
                return
            # Ranks that were faster in MPI_Finalize may be gone too. This process follows, if its status is known.
            lost = lost + 1 if presence.gone() and (status or not failed) else 0
            if lost * LOOK_SECONDS > LOST_SECONDS:
                libmpi.sign_off()
                leave_now(status)
        others = presence.not_at_their_end()
        if status and not libmpi.survives():
            why = f"it exits with status {status}, and has waited for the others for {limit:g} s"
            end_job(mpi, f"{why}: {others}", status)
        words = f"rank {rank} has waited for {limit:g} s in MPI_Finalize: {others}"
        end_process(f"hpccomm: {words}. It ends now", status or Status.ENDED)

    with contextlib.suppress(RuntimeError):  # too late for threads: the call goes on unwatched
        threading.Thread(target=watch, name="hpccomm-finalize", daemon=True).start()
    library.MPI_Finalize()
    done.set()


def leave_now(with_status: int) -> NoReturn:
    """End this process silently, after flushing its output."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):
            stream.flush()
    os._exit(with_status)


def _settle(mpi: Any) -> None:
    """Let the library move the messages on that this process has sent. Blocks for `SETTLE_SECONDS`."""
    until = time.perf_counter() + SETTLE_SECONDS
    with contextlib.suppress(mpi.Exception):
        while time.perf_counter() < until:
            mpi.COMM_WORLD.Iprobe(mpi.ANY_SOURCE, mpi.ANY_TAG)
            time.sleep(0.001)


def known() -> int:
    """Return the exit status of this process after an uncaught exception; 0 if Python does not reveal it."""
    return _known


def _in_main_thread() -> bool:
    return threading.get_ident() == threading.main_thread().ident


def _is_uncaught(error: BaseException) -> bool:
    """Whether the interpreter itself reports an exception as uncaught, in ``sys.excepthook``.

    Programs also call the hook, or a wrapper of it, for caught exceptions. The interpreter stores
    the reported exception first.
    """
    return getattr(sys, "last_value", None) is error


# Exceptions.


_PRINTED = "_hpccomm_printed"
"""Attribute of exceptions that were printed."""


class _Exceptions:
    """Tells the other ranks of an exception that ends this rank's program.

    The first such exception of the job is printed, and ends the job.
    """

    def __init__(self, mpi: Any) -> None:
        self.end = False  # whether exceptions end the job
        self._mpi, self._owner = mpi, os.getpid()
        self._previous, sys.excepthook = sys.excepthook, self._uncaught

    def leaves(self, error: BaseException) -> None:
        """Tell the other ranks of an exception that leaves the block of a communicator.

        They are told now, since this rank may take long to come to its end.
        """
        error = raised.own_error(error)
        told = isinstance(error, SystemExit | KeyboardInterrupt | Exception) and status_of(error)
        if not (told and self._concerned() and _in_main_thread()) or hasattr(error, raised.MARK):
            return
        if isinstance(error, HpccommError | KeyboardInterrupt) and not isinstance(
            error, WaitTimeout
        ):
            raised.note(error)
        else:
            self._tell(error, at_once=True)

    def _uncaught(
        self, kind: type[BaseException], error: BaseException, where: TracebackType | None
    ) -> None:
        """End the job. It is installed as ``sys.excepthook``."""
        global _known, _lost
        if not _is_uncaught(error):
            self._previous(kind, error, where)
            return
        error = raised.own_error(error)
        kind = type(error)
        _known = status_of(error)
        if not (self.end and self._concerned()):
            raised.note(error)
            self._previous(kind, error, where)
            return
        rank = self._mpi.COMM_WORLD.rank
        if isinstance(error, KeyboardInterrupt):
            at = raised.came_from(error)
            end_process(f"hpccomm: rank {rank} was interrupted{at}", Status.INTERRUPTED)
        if isinstance(error, PeerLost):  # no second traceback beside the lost rank's own
            _lost = f", after {kind.__name__}: {error}"
            time.sleep(FOLLOWED_SECONDS)
        facts, others = self._tell(error, at_once=False)
        told = self._printed(error) in (None, error)
        what = kind.__name__ if told else raised.told(error)
        reason = f"{what} was not caught{raised.beside(facts, others)}"
        end_job(self._mpi, reason, Status.RAISED, partial(self._print, error), others)

    def _concerned(self) -> bool:
        return not self._mpi.Is_finalized() and self._owner == os.getpid()

    def _tell(self, error: BaseException, *, at_once: bool) -> tuple[Facts, dict[int, Facts]]:
        """Tell the other ranks of an exception; return this rank's facts of it and the exceptions of the others.

        With `at_once`, this rank prints the exception if it is the first of the job.
        """
        facts = raised.note(error)
        others = presence.raised(GATHERED_SECONDS)
        if at_once and presence.first(others, facts) is facts:
            self._print(error)
        return facts, others

    def _printed(self, error: BaseException) -> BaseException | None:
        """Return the one that was printed of an exception and those that led to it; None without one."""
        return next((each for each in raised.chain(error) if hasattr(each, _PRINTED)), None)

    def _print(self, error: BaseException) -> None:
        """Print an exception as the reason why the job ends, once."""
        if self._printed(error) is not None:
            return
        setattr(error, _PRINTED, True)
        rank = self._mpi.COMM_WORLD.rank
        answering.say("why the job ends")
        if isinstance(error, SystemExit):
            exits = f"exits with status {status_of(error)}{raised.came_from(error)}"
            write_stderr(f"hpccomm: rank {rank} {exits}")
        else:
            lines = "\n".join(raised.report(error))
            write_stderr(f"hpccomm: rank {rank} raised:\n{lines}".rstrip())


# Signals.


def _hook_signals(rank: int) -> None:
    """Install handlers of SIGTERM and SIGINT, unless the program has its own. In the main thread.

    The service thread acts on these signals as well.
    """
    terminates = signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    python_s = signal.default_int_handler
    interrupts = signal.getsignal(signal.SIGINT) == python_s

    def terminated(*_: object) -> None:
        if _ends_here():
            return
        end_process(f"hpccomm: rank {rank} ends: it was sent SIGTERM{_lost}", Status.TERMINATED)

    def interrupted(number: int, frame: FrameType | None) -> None:
        global _handled
        _handled = time.monotonic()
        if _ends_here():
            return
        if leaving():  # Python drops an exception of an exit function, and exits with 0
            end_process(f"hpccomm: rank {rank} was interrupted at its exit", Status.INTERRUPTED)
        python_s(number, frame)

    def interrupt() -> None:
        came = time.monotonic()
        while _handled < came - TOGETHER_SECONDS and time.monotonic() < came + HANDLED_SECONDS:
            service.rest(LOOK_SECONDS)
        # In a call of another library, Python handles the signal when the call returns, as without hpccomm.
        if _handled < came - TOGETHER_SECONDS and _in_a_call():
            end_process(f"hpccomm: rank {rank} was interrupted{_whereabouts()}", Status.INTERRUPTED)

    if terminates:
        on_signal(signal.SIGTERM, terminated, terminated)
    if interrupts:
        on_signal(signal.SIGINT, interrupted, interrupt)


def _whereabouts() -> str:
    """Return the main thread's place in the program, as a clause; empty if it is not known."""
    frame = _main_frame()
    while frame is not None and frame.f_code.co_filename.startswith(PACKAGE):
        frame = frame.f_back
    return "" if frame is None else f" at {described(site_of(frame))}"


def _in_a_call() -> bool:
    """Whether the main thread is in a call of hpccomm, such as MPI's start, and not in a function that calls back."""
    frame = _main_frame()
    while frame is not None and in_standard(frame):
        frame = frame.f_back
    return frame is not None and frame.f_code.co_filename.startswith(PACKAGE)


def _main_frame() -> FrameType | None:
    return frames().get(threading.main_thread().ident or 0)
