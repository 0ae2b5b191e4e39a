"""The watchdog checks each watched object independently, and keeps none alive."""

import gc
import threading
import time
import weakref

from hpccomm.runtime.watchdog import watch


class Watched:
    """Notes that it is looked after, and may fail once."""

    def __init__(self, error: Exception | None = None) -> None:
        self.seen = threading.Event()
        self._error = error

    def look(self, now: float) -> None:
        """Note it."""
        self.seen.set()
        error, self._error = self._error, None
        if error is not None:
            raise error


def test_what_is_watched_may_go() -> None:
    watched = Watched()
    watch(watched)
    gone = weakref.ref(watched)
    assert watched.seen.wait(60)
    del watched
    until = time.monotonic() + 60
    while gone() is not None:  # the watchdog may be at it just now
        assert time.monotonic() < until
        gc.collect()
        time.sleep(0.01)


def test_one_that_fails_keeps_no_other_from_being_looked_after() -> None:
    wrong, others = Watched(ValueError("planted")), [Watched(), Watched()]
    for each in (others[0], wrong, others[1]):
        watch(each)
    for each in (wrong, *others):
        assert each.seen.wait(60)
        each.seen.clear()
    assert others[1].seen.wait(60)
