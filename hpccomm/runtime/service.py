"""The service thread, and what outlives a call.

The thread does what must go on while the program's threads compute, or are stuck in a library. It
answers other processes and acts on signals as they come. Ten times a second it is the
watchdog, which checks everything that no thread polls: the longest wait of each
communicator (`CallEngine.look`), and the calls on a device's streams (`PendingCalls`). A thread of
its own asks the devices, since that may block for ever; the watchdog checks that thread too.

A rank that asks expects the answer within half a second. A look may ask other ranks, which may ask
this one at the same moment: if neither answered, each would take the other for silent. So this
thread never just waits. It hears all its descriptors while it asks, sleeps (`Service.rest`) or wants
a lock, and what ends the process or a communicator has a thread of its own (`Service.aside`). The
rest of a look, such as the file of a dump or a call of MPI's, must be short beside that half second.

Everything that must stay alive until the exit (`keep`), run there (`at_exit`) or run after a fork
(`after_fork`) is registered here too, with the process's exit status and its last words.
"""

import atexit
import contextlib
import gc
import logging
import os
import selectors
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from enum import IntEnum
from functools import partial, wraps
from operator import itemgetter
from types import FrameType
from typing import Any, NoReturn, ParamSpec

logger = logging.getLogger("hpccomm")

Step = Callable[[], None]

STACK_BYTES = 1 << 20
"""Stack of the threads that look after others: the usual one, of the size of a program's, is for more."""

_kept: dict[int, object] = {}  # by identity
_exit_steps: "dict[tuple[ExitStep, Step], None]" = {}  # in the order of registration
_child_steps: list[Step] = []
_last_steps: list[Step] = []
_leaving = False
_ending: int | None = None
_blocked_before: dict[int, set[signal.Signals | int]] = {}  # of threads that are forking

LAST_SECONDS = 2.0
"""Seconds for the last writes if hpccomm ends the process."""

PATIENCE_SECONDS = LAST_SECONDS + 2.0
"""How long an end may take in all: those writes, and the launcher."""


class Status(IntEnum):
    """Why a process has ended. ``sys.exit(n)`` of the program stays n."""

    DONE = 0
    """Done."""
    RAISED = 1
    """An exception was not caught. At the command line: done, and a result was wrong."""
    REFUSED = 2
    """At the command line: not done. Misuse, configuration, results file, communication, full output."""
    ENDED = 3
    """hpccomm ended the job, because its ranks could not go on: a deadline, a mismatch or a lost rank in a
    call that cannot be left, or a creation or finalisation that outlived its deadline."""
    UNDECIDED = 4
    """At the command line: done, and other processes kept nodes so busy that nothing is decided."""
    INTERRUPTED = 130
    """SIGINT: interrupted from the keyboard."""
    UNREAD = 141
    """At the command line: what reads standard output has ended (``hpccomm show FILE | head``)."""
    TERMINATED = 143
    """SIGTERM."""


def status_of(error: BaseException) -> int:
    """Return the status of a process that an exception ends, as Python and this module have it."""
    if isinstance(error, SystemExit):
        code = error.code
        return 0 if code is None else code & 0xFF if isinstance(code, int) else 1
    return Status.INTERRUPTED if isinstance(error, KeyboardInterrupt) else Status.RAISED


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Keep the collector from running, such as in the middle of a measurement, as timeit does."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def keep(*objects: object) -> None:
    """Keep objects for the life of the process, or until `let_go`. From any thread.

    For arrays and requests of a call that failed under way: a late peer may still write to that
    memory, also after the communicator's end. The objects also outlive the interpreter, by
    `ServiceThread`: MPI may write until the process has ended, and destructors may block.
    """
    _kept.update((id(each), each) for each in objects)


def let_go(kept: object) -> None:
    """Give up what `keep` was called with: nothing can touch it any more. From any thread."""
    _kept.pop(id(kept), None)


class ExitStep(IntEnum):
    """The steps of the process's exit, in the order in which they run.

    Registered at any time and in any order.
    """

    CALLERS = 0
    """End hpccomm's own threads that make calls, while what carries the calls out is still there."""
    DEVICES = 1
    """Wait for devices and free NCCL's communicators, while peers and their threads exist."""
    THREADS = 2
    """End the threads that move operations on, and keep others from MPI, which is to be finalised."""
    MPI = 3
    """Finalise MPI under a deadline, or leave it where a communicator has failed."""


def at_exit(which: ExitStep, step: Step) -> None:
    """Run `step` when the process ends, in its place among the others. Once, if registered again.

    All of them run before any exit function that was registered earlier, such as one of a library
    that this step uses.
    """
    _exit_steps[which, step] = None
    atexit.unregister(_leave)
    atexit.register(_leave)


def _leave() -> None:
    global _leaving
    _leaving = True
    interrupted = None
    for which, step in sorted(_exit_steps, key=itemgetter(0)):
        try:
            step()
        except KeyboardInterrupt as error:  # without the steps that follow the process may crash
            interrupted = error
        except Exception:  # the steps that follow must still run
            logger.exception("a step of the exit failed: %s", which.name)
    if interrupted is not None:
        raise interrupted


def run_exit_steps(which: ExitStep) -> None:
    """Run some of the steps early. They run at the exit again."""
    for each, step in tuple(_exit_steps):
        if each is which:
            step()


def leaving() -> bool:
    """Whether the program has ended and the steps of the exit run."""
    return _leaving


class ServiceThread(threading.Thread):
    """A thread that runs hpccomm's code alone, so that it calls no communicator for the program."""

    kept = _kept
    """The interpreter empties modules at its end, and leaves daemon threads with all that they have."""


def start_thread(name: str, run: Callable[..., None], *arguments: object) -> bool:
    """Start a daemon thread; return whether there is one: a process may have too little address space.

    A step that fails is logged and skipped. A correct program must not depend on it.
    """
    usual = threading.stack_size(STACK_BYTES)
    try:
        ServiceThread(target=run, args=arguments, name=name, daemon=True).start()
    except RuntimeError as error:
        logger.warning("cannot start thread %r; continuing without it: %s", name, error)
        return False
    finally:
        threading.stack_size(usual)
    return True


def before_end(step: Step, *, first: bool = False) -> Step:
    """Run `step` where hpccomm ends the process at once, which runs no exit function; a decorator.

    Such as at a deadline, or at SIGTERM. It runs in a thread of its own, while the main thread may be
    anywhere, and should write down at once what would be lost. With `first` it runs before the others:
    some launchers leave a quarter of a second after SIGTERM.
    """
    _last_steps.insert(0 if first else len(_last_steps), step)
    return step


def ending() -> int | None:
    """Return the status with which hpccomm ends the process, for the steps of `before_end`."""
    return _ending


def write_last(with_status: int) -> None:
    """Run what was registered by `before_end`; takes at most `LAST_SECONDS`. From any thread."""
    global _ending
    _ending = with_status

    def run() -> None:
        for step in _last_steps:
            try:
                step()
            except Exception:  # the others must still run
                logger.exception("something could not be written before the end")

    if _last_steps:
        # The main thread may hold any lock, so none may be waited for here.
        thread = threading.Thread(target=run, name="hpccomm-last", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # too late for threads
            run()
        else:
            thread.join(LAST_SECONDS)


def after_fork(step: Step) -> Step:
    """Run `step` in each child that the process forks; a decorator. No step relies on another.

    A child lacks its parent's threads, its locks may be held by one of them, and MPI is lost.
    """
    if not _child_steps:
        os.register_at_fork(
            before=_hold_signals, after_in_parent=_let_signals, after_in_child=_forked
        )
    _child_steps.append(step)
    return step


def _forked() -> None:
    for step in _child_steps:
        step()
    _let_signals()


def _hold_signals() -> None:
    """Hold signals back until the child's steps are done: its handlers still wake threads of its parent."""
    held = {signal.SIGINT, signal.SIGTERM, signal.SIGUSR1}
    _blocked_before[threading.get_ident()] = signal.pthread_sigmask(signal.SIG_BLOCK, held)


def _let_signals() -> None:
    blocked = _blocked_before.pop(threading.get_ident(), None)
    if blocked is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


# Last words, to standard error, in any state of the process.

STDERR = 2
"""The process's own standard error, independent of ``sys.stderr``."""


class Voice:
    """Lets one of the ranks that have the same to say speak for all: it asks the others, where it can.

    Attributes
    ----------
    before : callable
        ``before(what)`` returns how many ranks have said something before this one says it. It may ask
        them, which takes up to half a second.
    leaves : callable
        ``leaves(error)`` tells the other ranks, and who reads, of an exception that leaves the block of
        a communicator. It may take half a second.
    """

    before: Callable[[str], int] = staticmethod(lambda _: 0)
    leaves: Callable[[BaseException], None] = staticmethod(lambda _: None)


def write_stderr(text: str) -> None:
    """Write a line to standard error. Never raises.

    It may be closed, its reader gone, or a signal have come while a stream was being flushed.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # it may be an object of the program's
            stream.flush()
    with contextlib.suppress(OSError):
        os.write(STDERR, f"{text}\n".encode(errors="backslashreplace"))


def guard_logging() -> None:
    """Keep exceptions of the program's logging handlers from ending a call or thread. Idempotent.

    A thread that watches calls, or the end of the job, may be what logs. The record is printed instead.
    """
    if "callHandlers" in vars(logger):
        return
    handle = logger.callHandlers

    def guarded(record: logging.LogRecord) -> None:
        try:
            handle(record)
        except Exception as error:  # noqa: BLE001 (any exception)
            write_stderr(
                f"hpccomm: {record.getMessage()}\nhpccomm: a logging handler failed on it: {error!r}"
            )

    logger.callHandlers = guarded  # type: ignore[method-assign]


LOOK_SECONDS, PAUSE_SECONDS = 0.1, 0.01

P = ParamSpec("P")

Look = Callable[[float], None]
"""Looks whether something has outlived its deadline, at ``time.perf_counter()``: a bound method, held weakly."""


class Descriptors:
    """Open files, each with a function to call when it can be read, or written."""

    def __init__(self) -> None:
        self._selector = selectors.PollSelector()  # which needs no file of its own

    def hear(
        self, file: Any, act: Callable[[], object], events: int = selectors.EVENT_READ
    ) -> None:
        """Call ``act()`` from the next `turn` on, in place of what was called before."""
        self.forget(file)
        self._selector.register(file, events, act)

    def forget(self, file: Any) -> None:
        """Call nothing more for a file, which is closed after that. From any thread; idempotent."""
        with suppress(KeyError, ValueError):  # which a file raises that is closed already
            self._selector.unregister(file)

    def turn(self, seconds: float) -> None:
        """Wait at most so long until there is something to do, and do it."""
        for key, _ in self._selector.select(seconds):
            # An earlier one of them may have turned these, and there may be another file of that number.
            if self._selector.get_map().get(key.fd) is key:
                try:
                    key.data()
                except Exception:  # the others must still be heard
                    logger.exception("the service thread failed")
                    self.forget(key.fileobj)


class Service(Descriptors):
    """A thread that hears its descriptors, and looks after what is watched.

    Parameters
    ----------
    name : str
        Of its thread, which starts when it is needed.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self.reset()

    def reset(self) -> None:
        """Begin anew, in a forked child, which has no such thread."""
        super().__init__()
        self._looks: dict[weakref.WeakMethod[Look], None] = {}
        self._lock = threading.Lock()
        self._running = False
        self._thread = 0

    def start(self) -> bool:
        """Start the thread, once; return whether it runs. What it hears begins a tenth of a second later."""
        with self._lock:
            self._running = self._running or start_thread(self._name, self._run)
            return self._running

    def watch(self, look: Look) -> None:
        """Call ``look(now)`` from now on, as long as its object lives."""
        self._looks[weakref.WeakMethod(look)] = None
        self.start()

    def _run(self) -> None:
        self._thread = threading.get_ident()
        while True:
            self.rest(LOOK_SECONDS)
            self._look(time.perf_counter())

    def _look(self, now: float) -> None:
        # In a function of its own, whose end drops the watched objects.
        for each in self._looks.copy():  # in one step of the interpreter
            look = each()
            try:
                if look is None:
                    del self._looks[each]
                else:
                    look(now)
            except Exception:  # the others must still be looked after
                logger.exception("the watchdog failed")

    # In any thread, of which this one must go on hearing.

    def _here(self) -> bool:
        return self._thread == threading.get_ident()

    def descriptors(self) -> Descriptors:
        """Return where the calling thread waits for files: this one for all that it hears at the same time."""
        return self if self._here() else Descriptors()

    def rest(self, seconds: float) -> None:
        """Sleep."""
        if not self._here():
            time.sleep(seconds)
            return
        until = time.perf_counter() + seconds
        while (left := until - time.perf_counter()) > 0:
            self.turn(left)

    @contextmanager
    def holding(self, lock: threading.Lock) -> Iterator[None]:
        """Hold a lock during the block, which others hold while they ask."""
        while not lock.acquire(blocking=not self._here()):
            self.rest(PAUSE_SECONDS)
        try:
            yield
        finally:
            lock.release()

    def aside(self, run: Callable[[], None]) -> None:
        """Run what may take long: this thread has another one do it."""
        if not (self._here() and start_thread("hpccomm-end", run)):
            run()

    def ends(self, run: Callable[P, NoReturn]) -> Callable[P, NoReturn]:
        """Have a function that ends the process run `aside`; a decorator."""

        @wraps(run)
        def end(*arguments: P.args, **keywords: P.kwargs) -> NoReturn:
            def ending() -> None:
                try:
                    run(*arguments, **keywords)
                finally:  # it has failed
                    os._exit(Status.ENDED)

            self.aside(ending if self._here() else partial(run, *arguments, **keywords))
            while True:
                self.rest(LOOK_SECONDS)

        return end


service = Service("hpccomm-service")
"""The thread that hears, and is the watchdog."""

devices = Service("hpccomm-devices")
"""The thread that asks devices, and may not come back."""

Handler = Callable[[int, FrameType | None], Any]

_signals: dict[int, tuple[Handler, Callable[[], object], Any]] = {}  # with the handler before


def on_signal(number: int, handle: Handler, act: Callable[[], object]) -> None:
    """Handle a signal in the main thread, which calls this, and have the service thread act on it as well.

    Python runs handlers in the main thread, between two instructions: never, while that is blocked in
    a library. But it writes the signal's number to a descriptor at once. There is one in a process: if
    the program has it, as asyncio's ``add_signal_handler``, nothing acts beside the handler.
    """
    if not _signals:
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        others = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        if others == -1:
            service.hear(reader, partial(_signalled, reader))
            service.start()
        else:
            signal.set_wakeup_fd(others)
            os.close(reader)
            os.close(writer)
    _signals[number] = handle, act, signal.signal(number, handle)


def _signalled(reader: int) -> None:
    for number in set(os.read(reader, 64)).intersection(_signals):
        handle, act, _ = _signals[number]
        if signal.getsignal(number) is handle:
            act()


@after_fork
def _after_fork() -> None:
    service.reset()
    devices.reset()
    if _signals:
        signal.set_wakeup_fd(-1)
    for number, (handle, _, before) in _signals.items():
        if signal.getsignal(number) is handle:
            signal.signal(number, before)
    _signals.clear()
