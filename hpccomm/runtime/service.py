"""The service thread, and the steps at the exit of the process and after a fork.

The thread does what must go on while the program's threads compute, or are stuck in a library. It
answers other processes and acts on signals as they come. Ten times a second it is the
watchdog, which checks everything that no thread polls: the longest wait of each
communicator (`CallEngine.look`), and the calls on a device's streams (`PendingCalls`). A separate thread
asks the devices, since that may block for ever; the watchdog checks that thread too.

A rank that asks expects the answer within half a second. A look may ask other ranks, which may ask
this one at the same moment: if neither answered, each would take the other for silent. So this
thread never just waits. It serves all its descriptors while it asks, sleeps (`Service.rest`) or waits for
a lock, and another thread ends the process or a communicator (`Service.aside`). The
rest of a look, such as the file of a dump or a call of MPI's, must take much less than that half second.

Objects that must stay alive until the exit (`keep`), functions that run at the exit (`at_exit`) or after a fork
(`after_fork`), the process's exit status and its last words are here too. All of `hpccomm` uses this module.
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
"""Stack size of hpccomm's own threads, which need little; the default is that of a program's main thread."""

_kept: dict[int, object] = {}  # keyed by id()
_exit_steps: "dict[tuple[ExitStep, Step], None]" = {}  # in the order of registration
_child_steps: list[Step] = []
_last_steps: list[Step] = []
_leaving = False
_ending: int | None = None
_blocked_before: dict[int, set[signal.Signals | int]] = {}  # signal masks of forking threads

LAST_SECONDS = 2.0
"""Seconds for the last writes if hpccomm ends the process."""

PATIENCE_SECONDS = LAST_SECONDS + 2.0
"""Seconds that the end of the process may take in all: the last writes, and the launcher."""


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
    """At the command line: done, but other processes kept nodes so busy that the result decides nothing."""
    INTERRUPTED = 130
    """SIGINT: interrupted from the keyboard."""
    UNREAD = 141
    """At the command line: the reader of standard output has ended (``hpccomm show FILE | head``)."""
    TERMINATED = 143
    """SIGTERM."""


def status_of(error: BaseException) -> int:
    """Return the exit status of a process that an exception ends: Python's for `SystemExit`, else a `Status`."""
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

    It serves the arrays and requests of a call that failed under way: a late peer may still write to that
    memory, also after the communicator's end. The objects also outlive the interpreter, since
    `ServiceThread` refers to them: MPI may write until the process has ended, and destructors may block.
    """
    _kept.update((id(each), each) for each in objects)


def let_go(kept: object) -> None:
    """Release an object that `keep` was called with, once no other rank can touch it. From any thread."""
    _kept.pop(id(kept), None)


class ExitStep(IntEnum):
    """The steps of the process's exit, in the order in which they run.

    Registered at any time and in any order.
    """

    CALLERS = 0
    """End hpccomm's own threads that make calls, while the engines of those calls still run."""
    DEVICES = 1
    """Wait for devices and free NCCL's communicators, while peers and their threads exist."""
    THREADS = 2
    """End the threads that move operations on, and keep other threads from MPI, which is finalised next."""
    MPI = 3
    """Finalise MPI under a deadline, or leave it where a communicator has failed."""


def at_exit(which: ExitStep, step: Step) -> None:
    """Run `step` when the process ends, at its place in `ExitStep`. A step that is registered twice runs once.

    All steps run before any exit function that was registered earlier, such as one of a library
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
        except KeyboardInterrupt as error:  # the process may crash without the remaining steps
            interrupted = error
        except Exception:  # the remaining steps must still run
            logger.exception("a step of the exit failed: %s", which.name)
    if interrupted is not None:
        raise interrupted


def run_exit_steps(which: ExitStep) -> None:
    """Run the steps of one kind early. They run again at the exit."""
    for each, step in tuple(_exit_steps):
        if each is which:
            step()


def leaving() -> bool:
    """Whether the program has ended and the steps of the exit run."""
    return _leaving


class ServiceThread(threading.Thread):
    """A thread that runs only hpccomm's code, so that it makes no calls for the program."""

    kept = _kept
    """Refers to the kept objects. The interpreter empties modules at its end, but not what daemon threads refer to."""


def start_thread(name: str, run: Callable[..., None], *arguments: object) -> bool:
    """Start a daemon thread, and return whether it runs: a process may have too little address space.

    A failure to start is logged. A correct program must not depend on the thread.
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
    """Run `step` where hpccomm ends the process at once, without Python's exit functions; a decorator.

    That is so at a deadline, or at SIGTERM. The step runs in a thread of its own, while the main thread may be
    anywhere, and should quickly write what would be lost. With `first` it runs before the others:
    some launchers leave a quarter of a second after SIGTERM.
    """
    _last_steps.insert(0 if first else len(_last_steps), step)
    return step


def ending() -> int | None:
    """Return the status with which hpccomm ends the process, for the steps of `before_end`."""
    return _ending


def write_last(with_status: int) -> None:
    """Run the steps of `before_end`; takes at most `LAST_SECONDS`. From any thread."""
    global _ending
    _ending = with_status

    def run() -> None:
        for step in _last_steps:
            try:
                step()
            except Exception:  # the other steps must still run
                logger.exception("something could not be written before the end")

    if _last_steps:
        # The main thread may hold any lock, so the steps run in a thread that can be abandoned.
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
    """Hold signals back until the child's steps are done: until then its handlers wake the parent's threads."""
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
    """Lets one rank speak for all ranks that would say the same. It asks the other ranks, where it can.

    Attributes
    ----------
    before : callable
        ``before(what)`` returns how many ranks said `what` before this rank. It may ask
        them, which takes up to half a second.
    leaves : callable
        ``leaves(error)`` tells the other ranks of an exception that leaves the block of
        a communicator, and may print it. It may take half a second.
    """

    before: Callable[[str], int] = staticmethod(lambda _: 0)
    leaves: Callable[[BaseException], None] = staticmethod(lambda _: None)


def write_stderr(text: str, to: int = STDERR) -> None:
    """Write a line to standard error, or to another descriptor. Never raises.

    Standard error may be closed, its reader may be gone, or a signal may have interrupted the flush of a stream.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # it may be an object of the program's
            stream.flush()
    with contextlib.suppress(OSError):
        os.write(to, f"{text}\n".encode(errors="backslashreplace"))


def guard_logging() -> None:
    """Keep exceptions of the program's logging handlers from ending a call or thread. Idempotent.

    The thread that logs may be the watchdog, or one that ends the job. A record that a handler fails on is printed.
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
"""Checks whether something has outlived its deadline at the given ``time.perf_counter()``. A bound method, held
weakly."""


class Descriptors:
    """Open files, each with a function to call when the file can be read or written."""

    def __init__(self) -> None:
        self._selector = selectors.PollSelector()  # epoll would need a file descriptor

    def hear(
        self, file: Any, act: Callable[[], object], events: int = selectors.EVENT_READ
    ) -> None:
        """Call ``act()`` when the file is ready, from the next `turn` on, in place of an earlier function."""
        self.forget(file)
        self._selector.register(file, events, act)

    def forget(self, file: Any) -> None:
        """Call nothing more for a file, before the file is closed. From any thread; idempotent."""
        with suppress(KeyError, ValueError):  # the file may be closed already
            self._selector.unregister(file)

    def turn(self, seconds: float) -> None:
        """Wait at most `seconds` for files that are ready, and call their functions."""
        for key, _ in self._selector.select(seconds):
            # An earlier function may have called `turn`, or closed this file, and another file may have its number.
            if self._selector.get_map().get(key.fd) is key:
                try:
                    key.data()
                except Exception:  # the other files must still be served
                    logger.exception("the service thread failed")
                    self.forget(key.fileobj)


def weak_method(
    method: Any, ended: Callable[[Any], object] | None = None
) -> Callable[[], Callable[..., Any] | None]:
    """Return a function that gives a bound method, or None once its object has ended; `ended` is called then.

    `weakref.WeakMethod` raises AttributeError if a class ends with its last object and the weak method ends in between.
    """
    owner, function = weakref.ref(method.__self__, ended), method.__func__
    return lambda: None if (its := owner()) is None else function.__get__(its)


class Service(Descriptors):
    """A thread that serves its descriptors, and calls the watchers' checks ten times a second.

    Parameters
    ----------
    name : str
        Name of the thread, which starts when it is needed.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self.reset()

    def reset(self) -> None:
        """Start over without descriptors and watchers, as a forked child must: it has no such thread."""
        super().__init__()
        self._looks: dict[Callable[[], Look | None], None] = {}
        self._lock = threading.Lock()
        self._running = False
        self._thread = 0

    def start(self) -> bool:
        """Start the thread, once, and return whether it runs. A running thread serves a new file within 0.1 s."""
        with self._lock:
            self._running = self._running or start_thread(self._name, self._run)
            return self._running

    def watch(self, look: Look) -> None:
        """Call ``look(now)`` ten times a second from now on, as long as its object lives."""
        self._looks[weak_method(look)] = None
        self.start()

    def _run(self) -> None:
        self._thread = threading.get_ident()
        while True:
            self.rest(LOOK_SECONDS)
            self._look(time.perf_counter())

    def _look(self, now: float) -> None:
        # A separate function, so that no local variable of `_run` keeps a watched object alive.
        for each in self._looks.copy():  # one step of the interpreter: other threads may add
            look = each()
            try:
                if look is None:
                    del self._looks[each]
                else:
                    look(now)
            except Exception:  # the others must still be checked
                logger.exception("the watchdog failed")

    # For any thread. If it is the service thread, it goes on serving its descriptors.

    def _here(self) -> bool:
        return self._thread == threading.get_ident()

    def descriptors(self) -> Descriptors:
        """Return the descriptors by which the calling thread may wait: in the service thread its own, else new ones."""
        return self if self._here() else Descriptors()

    def rest(self, seconds: float) -> None:
        """Sleep for `seconds`; the service thread serves its descriptors meanwhile."""
        if not self._here():
            time.sleep(seconds)
            return
        until = time.perf_counter() + seconds
        while (left := until - time.perf_counter()) > 0:
            self.turn(left)

    @contextmanager
    def holding(self, lock: threading.Lock) -> Iterator[None]:
        """Hold during the block a lock that other threads hold while they ask ranks."""
        while not lock.acquire(blocking=not self._here()):
            self.rest(PAUSE_SECONDS)
        try:
            yield
        finally:
            lock.release()

    def aside(self, run: Callable[[], None]) -> None:
        """Run a function that may take long. The service thread has a new thread run it."""
        if not (self._here() and start_thread("hpccomm-end", run)):
            run()

    def ends(self, run: Callable[P, NoReturn]) -> Callable[P, NoReturn]:
        """Run a function that ends the process by `aside`, and wait for the end; a decorator."""

        @wraps(run)
        def end(*arguments: P.args, **keywords: P.kwargs) -> NoReturn:
            def ending() -> None:
                try:
                    run(*arguments, **keywords)
                finally:  # reached only if `run` failed
                    os._exit(Status.ENDED)

            self.aside(ending if self._here() else partial(run, *arguments, **keywords))
            while True:
                self.rest(LOOK_SECONDS)

        return end


service = Service("hpccomm-service")
"""The thread that serves descriptors, and is the watchdog."""

devices = Service("hpccomm-devices")
"""The thread that asks devices. It may be stuck there for ever."""

Handler = Callable[[int, FrameType | None], Any]

_signals: dict[int, tuple[Handler, Callable[[], object], Any]] = {}  # the last: earlier handler


def on_signal(number: int, handle: Handler, act: Callable[[], object]) -> None:
    """Handle a signal by `handle` in the main thread, and by `act` in the service thread. Call it in the main thread.

    Python runs handlers in the main thread, between two instructions: never, while that is blocked in
    a library. But Python writes the signal's number to the wake-up descriptor at once. A process has one such
    descriptor. If the program uses it, as asyncio's ``add_signal_handler`` does, `act` is not called.
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
