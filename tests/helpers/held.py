"""A stream that goes no further until it is let, and calls in another thread, for tests of devices."""

import threading

from cupy.cuda import runtime


class Held:
    """What holds up a stream, given as CuPy's or by its number."""

    def __init__(self, stream):
        self.stream = stream
        self._go = threading.Event()
        runtime.launchHostFunc(getattr(stream, "ptr", stream), lambda _: self._go.wait(60), None)

    def let_go(self):
        """Let it go on."""
        self._go.set()


def in_thread(function):
    """Call it in a new thread; return what it returned."""
    got = []
    thread = threading.Thread(target=lambda: got.append(function()))
    thread.start()
    thread.join()
    return got[0]
