"""The service thread: what must go on while the program's threads compute, or are stuck in a library.

It answers other processes and acts on signals as they come. Ten times a second it is the
watchdog, which checks everything that no thread polls: the longest wait of each
communicator (`CallEngine.look`), and the calls on a device's streams (`PendingCalls`). A thread of
its own asks the devices, since that may block for ever; the watchdog checks that thread too.

A rank that asks expects the answer within half a second. A look may ask other ranks, which may ask
this one at the same moment: if neither answered, each would take the other for silent. So this
thread never just waits. It hears all its descriptors while it asks, sleeps (`Service.rest`) or wants
a lock, and what ends the process or a communicator has a thread of its own (`Service.aside`). The
rest of a look, such as the file of a dump or a call of MPI's, must be short beside that half second.
"""

import logging
import os
import selectors
import signal
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial, wraps
from types import FrameType
from typing import Any, NoReturn, ParamSpec

from hpccomm.runtime.lifetime import Status, after_fork, start_thread

logger = logging.getLogger("hpccomm")

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
