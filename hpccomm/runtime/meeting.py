"""Calls that are faster on arrays that are registered on all ranks.

To find out whether they are, the ranks of the node meet, as a call on registered arrays does anyway; on others that is
for nothing. So the calls of one signature meet as long as that pays. Where it does not, they meet in the 2nd, 4th, 8th
and 16th call, and then in one of `LONGEST`: what was called before does not decide how fast a call is.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from hpccomm.contracts.backend import Blocking, Buffer, Start
from hpccomm.runtime.callpath import Issue
from hpccomm.runtime.recorder import BLOCKING, MODE, POLLED

if TYPE_CHECKING:
    from hpccomm.contracts.transport import Steps
    from hpccomm.runtime.engine import CallEngine

LONGEST = 17
"""So many calls follow each other at most in which ranks do not meet, or meet for nothing. A prime: a program
that takes a few arrays in turn meets with each of them."""


class Habit:
    """Whether the calls of one signature meet. All ranks change it in the same calls, to the same.

    Attributes
    ----------
    registered : bool
        Whether they meet in each call, since they have lately found that it pays.
    left : int
        Calls until that changes, unless one finds registered arrays.
    """

    __slots__ = ("_pause", "left", "registered")

    def __init__(self) -> None:
        self.registered = False
        self.left = self._pause = 1

    def met(self, registered: bool) -> None:
        """Take note of what a call has found."""
        if registered:
            self.registered, self.left, self._pause = True, LONGEST, 1
            return
        if self.registered:
            self.left -= 1
            if self.left:
                return
        self.registered, self.left = False, self._pause
        self._pause = min(2 * self._pause, LONGEST)


def meeting(
    calls: "CallEngine",
    meet: Callable[[Buffer, Buffer], Any],
    start: Start,
    run: Blocking | None,
    habit: Habit,
) -> Start:
    """Return what gives the steps of a call in which the ranks meet.

    Parameters
    ----------
    calls : CallEngine
        The communicator's.
    meet : callable
        ``meet(send, recv)`` gives steps that carry the call out if the arrays of all ranks are registered, and
        return whether they are.
    start, run : callable and Blocking or None
        Carry it out otherwise, `run` where it is there.
    habit : Habit
        Takes note of it.
    """

    def steps(send: Buffer, recv: Buffer) -> "Steps":
        found = yield from meet(send, recv)
        habit.met(found)
        if found:
            return
        if run is None:
            yield from start(send, recv)
            return
        if calls.gate.error is not None:  # the library's call would not see it
            raise calls.gate.error
        entry = calls.current
        assert entry is not None  # of this very call
        entry[MODE] = BLOCKING
        try:
            run.call(*run.arguments(send, recv))
        finally:
            entry[MODE] = POLLED

    return steps


def either(habit: Habit, meets: Issue, plain: Issue) -> Issue:
    """Return what carries out calls by `meets` where that is their habit or due, else by `plain`."""

    def issue(arguments: tuple[Any, ...], keep: object, timeout: float) -> None:
        if not habit.registered:
            habit.left -= 1
            if habit.left:
                plain(arguments, keep, timeout)
                return
        meets(arguments, keep, timeout)

    return issue
