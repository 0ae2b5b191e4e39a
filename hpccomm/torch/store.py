"""c10d's store over hpccomm's side channel: rank 0 keeps the values, and a thread of it answers.

It needs no port. `starting` gives it to c10d.
"""

import itertools
import os
from collections.abc import Callable, Sequence
from datetime import timedelta
from threading import Lock
from time import monotonic, sleep
from typing import Any

from torch.distributed import DistStoreError, Store

from hpccomm.contracts.backend import ANSWERED, GONE, Facts, SideChannel
from hpccomm.runtime.answering import serve
from hpccomm.torch.untraced import untraced

ANSWER_SECONDS = 30.0
"""How long rank 0 may take for an answer, before it is asked again."""

LONGEST_PAUSE = 0.05
"""Seconds between two looks for a value that is not there yet."""

_numbers = itertools.count()


@untraced
class JobStore(Store):  # type: ignore[misc]  # PyTorch brings no types
    """The store of the ranks of a communicator. Making it is local, in one order on all ranks.

    Parameters
    ----------
    side : SideChannel
        The communicator's.
    rank : int
        This rank.
    timeout : float
        Seconds that `get` and `wait` wait.
    """

    def __init__(self, side: SideChannel, rank: int, timeout: float) -> None:
        super().__init__()
        self.set_timeout(timedelta(seconds=timeout))  # a `PrefixStore` sets it there, too
        self._side, self._rank, self._process = side, rank, os.getpid()
        self._name = f"c10d store {next(_numbers)}"
        self._lock, self._serving, self._asked = Lock(), Lock(), 0
        self._values: dict[str, str] = {}
        self._answered: dict[int, tuple[int, Facts]] = {}
        if rank == 0:
            serve(self._name, self._serve)

    # At rank 0.

    def _serve(self, question: Facts) -> Facts:
        """Answer a question, once: a repeated question gets the same answer. From any thread."""
        with self._serving:
            number, answer = self._answered.get(question["from"], (-1, {}))
            if number != question["number"]:
                try:
                    answer = {"is": _OPERATIONS[question["do"]](self._values, *question["with"])}
                except (KeyError, TypeError, ValueError) as error:
                    answer = {"error": f"{type(error).__name__}: {error}"}
                self._answered[question["from"]] = question["number"], answer
            return answer

    # At every rank.

    def _ask(self, what: str, *arguments: object) -> Any:
        if os.getpid() != self._process:  # with the parent's number, which gets the parent's answer
            raise DistStoreError(
                f"{what}: a forked process has no part in the store; call it in the process that MPI has started"
            )
        limit = self._seconds()
        until = monotonic() + max(limit, LONGEST_PAUSE)
        with self._lock:
            self._asked += 1
            question = {
                "service": self._name,
                "from": self._rank,
                "number": self._asked,
                "do": what,
                "with": arguments,
            }
            while monotonic() < until:
                answer = self._side.ask((0,), question, ANSWER_SECONDS)[0]
                if answer.state == ANSWERED and "is" in answer.facts:
                    return answer.facts["is"]
                if answer.state == ANSWERED and "error" in answer.facts:
                    raise DistStoreError(f"{what}{arguments}: rank 0 has {answer.facts['error']}")
                if answer.state == GONE:
                    raise DistStoreError(f"{what}: rank 0, which keeps the store, has ended")
                sleep(LONGEST_PAUSE)  # rank 0 has not made its store yet, or is busy
        raise DistStoreError(f"rank 0, which keeps the store, did not answer in {limit:g} s")

    def _seconds(self, timeout: timedelta | None = None) -> float:
        return float((self.timeout if timeout is None else timeout).total_seconds())

    def set(self, key: str, value: str | bytes) -> None:
        """Set a value."""
        self._ask("set", key, _text(value))

    def add(self, key: str, amount: int) -> int:
        """Add to a number, and return it."""
        return int(self._ask("add", key, amount))

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        """Set a value if it is the expected one, or there is none and none is; return what it is now."""
        return _bytes(self._ask("compare_set", key, _text(expected), _text(desired)))

    def check(self, keys: Sequence[str]) -> bool:
        """Return whether all have values."""
        return bool(self._ask("check", list(keys)))

    def delete_key(self, key: str) -> bool:
        """Remove a value; return whether there was one."""
        return bool(self._ask("delete_key", key))

    def num_keys(self) -> int:
        """Return how many there are."""
        return int(self._ask("num_keys"))

    deleteKey, getNumKeys = delete_key, num_keys  # noqa: N815 (what a `PrefixStore` calls)

    def get(self, key: str) -> bytes:
        """Return a value, when it is there."""
        self.wait([key])
        return _bytes(self._ask("get", key))

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Wait until all have values.

        Raises
        ------
        torch.distributed.DistStoreError
            If the deadline passes.
        """
        limit = self._seconds(timeout)
        until, pause = monotonic() + limit, 1e-3
        while not self.check(keys):
            if monotonic() > until:
                raise DistStoreError(  # as TCPStore says it
                    f"wait timeout after {1e3 * limit:.0f}ms, keys: {', '.join(keys)}: no rank has set all of them"
                )
            sleep(pause)
            pause = min(LONGEST_PAUSE, pause * 1.5)


def _text(value: str | bytes) -> str:
    """Return a value as it is sent: a character a byte."""
    return (value.encode() if isinstance(value, str) else bytes(value)).decode("latin-1")


def _bytes(text: str) -> bytes:
    return text.encode("latin-1")


def _add(values: dict[str, str], key: str, amount: int) -> int:
    total = int(values.get(key, "0")) + amount
    values[key] = str(total)
    return total


def _compare_set(values: dict[str, str], key: str, expected: str, desired: str) -> str:
    if values.get(key, "") == expected:
        values[key] = desired
    return values.get(key, expected)


_OPERATIONS: dict[str, Callable[..., object]] = {
    "set": dict.__setitem__,
    "get": dict.get,
    "add": _add,
    "compare_set": _compare_set,
    "check": lambda values, keys: all(key in values for key in keys),
    "delete_key": lambda values, key: values.pop(key, None) is not None,
    "num_keys": len,
}
