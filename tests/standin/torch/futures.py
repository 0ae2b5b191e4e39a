"""Futures: who waits for one has the current streams wait for what gave its value."""

import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from torch import cuda


class Future:
    """A value to come. With devices it is complete once what was on their current streams is done."""

    def __init__(self, *, devices=()):
        self._devices = devices
        self._value: Any = None
        self._events: list[Any] = []
        self._callbacks: list[Callable[[], None]] = []
        self._set = threading.Event()

    def set_result(self, value):
        self._value = value
        self._events = [(each, cuda.current_stream(each).record_event()) for each in self._devices]
        self._set.set()
        while self._callbacks:
            self._callbacks.pop(0)()

    def then(self, callback):
        """Have a callback called, on streams of its own; return the future of its value."""
        made = Future(devices=self._devices)

        def called():
            with ExitStack() as streams:
                for each in self._devices:
                    streams.enter_context(cuda.stream(cuda.Stream(each)))
                self.wait()
                made.set_result(callback(self))

        self._callbacks.append(called)
        return made

    def wait(self):
        self._set.wait()
        for device, event in self._events:
            cuda.current_stream(device).wait_event(event)
        return self._value
