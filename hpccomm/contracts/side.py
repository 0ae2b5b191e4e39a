"""The side channel: how ranks ask each other about their calls, while calls wait.

It works without a thread that is stuck in a call: another thread of the process answers. It moves
small facts, never arrays, and only when a call waits long or has failed. Backends implement it;
`hpccomm.runtime.inquiry` asks.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

Facts = Mapping[str, Any]
"""Plain data that JSON can hold: a question, or what a rank answers to one."""

ANSWERED, GONE, STOPPED, SILENT = "answered", "gone", "stopped", "silent"
"""What became of a question. The rank answered; its process is not there any more; its process is
stopped, by SIGSTOP or a debugger; it is there, or may be, and did not answer in time."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of one rank.

    Attributes
    ----------
    state : str
        `ANSWERED`, `GONE`, `STOPPED` or `SILENT`.
    facts : mapping
        The answer. For a silent rank only the facts known without it: ``"host"`` and ``"pid"`` of
        its process.
    """

    state: str
    facts: Facts = field(default_factory=dict)


class SideChannel(Protocol):
    """The way to the other ranks of one communicator that no stuck call can block."""

    def ask(self, ranks: Sequence[int], question: Facts, seconds: float) -> dict[int, Answer]:
        """Ask ranks of the communicator, all at the same time. Local; blocks at most `seconds`.

        From any thread. Each answers with the result of ``hpccomm.runtime.answering.answer`` there.

        Parameters
        ----------
        ranks : sequence of int
            Whom to ask; this rank itself is allowed.
        question : mapping
            ``"comm"`` names the communicator by its ``uid``. The channel adds ``"rank"``: who is asked.
        seconds : float
            How long to wait for all answers together.

        Returns
        -------
        dict
            An `Answer` for each of `ranks`.
        """


def group_uid(uid: str, ranks: Sequence[int], label: object) -> str:
    """Return the uid of a group, which each member derives from that of the communicator.

    `ranks` are its members there; `label` distinguishes groups of the same ranks.
    """
    name = f"{uid} {label} {','.join(map(str, ranks))}"
    return hashlib.blake2b(name.encode(), digest_size=8).hexdigest()
