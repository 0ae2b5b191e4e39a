"""Every error that hpccomm raises.

::

    HpccommError
    ├─ ConfigurationError            the environment or a setting is wrong
    │  ├─ BackendUnavailable         a requested backend cannot run here
    │  └─ LaunchError                the job was started in a way that cannot work
    ├─ UsageError (ValueError)       an argument is wrong; raised before anything is sent
    │  ├─ BufferMismatch             an array or message has the wrong size or dtype
    │  └─ UnsupportedDtype           the dtype, or its pairing with the reduction, means nothing
    ├─ CommunicationError            something went wrong between ranks
    │  ├─ CollectiveTimeout          the deadline passed
    │  │  └─ WaitTimeout (TimeoutError)  that of a wait alone: nothing has failed
    │  ├─ RankMismatch               the ranks asked for different things
    │  ├─ PeerLost                   a rank is gone
    │  └─ CommunicatorAborted        the communicator has failed or was aborted
    └─ ResultsError                  a results file cannot be written or read
       └─ SchemaMismatch             it has another schema

Each message says what was given, what would fit and what to do.
"""

import copy
from collections.abc import Iterable, Sequence
from typing import TypeVar

from hpccomm.units import ranks_named

Error = TypeVar("Error", bound=BaseException)


class HpccommError(Exception):
    """Root of the tree."""


class ConfigurationError(HpccommError):
    """The environment, or a setting, is wrong."""


class BackendUnavailable(ConfigurationError):
    """A backend that was asked for cannot run here; the message gives cause and remedy."""


class LaunchError(ConfigurationError):
    """The job was started in a way that cannot work."""


class UsageError(HpccommError, ValueError):
    """An argument is wrong. Raised before anything is sent."""


class BufferMismatch(UsageError):
    """An array or message does not have the size, shape or dtype that fits.

    Attributes
    ----------
    ranks : tuple of int
        The sender, where it is a message that does not fit.
    """

    ranks: tuple[int, ...] = ()


class UnsupportedDtype(UsageError):
    """A dtype that cannot be communicated, or a pair of reduction and dtype that means nothing."""


class CommunicationError(HpccommError):
    """Something went wrong between ranks.

    Attributes
    ----------
    communicator : str or None
        Name of the communicator.
    rank : int or None
        This process's rank in it.
    sequence : int or None
        The call's number on this communicator, from 1.
    operation : str or None
        What was under way, such as ``"all_reduce"``.
    nbytes : int or None
        Bytes of this rank's array.
    elapsed : float or None
        Seconds since the call began.
    ranks : tuple of int
        The ranks that are missing or differ, where known.
    advised : bool
        Whether the message says how to go on.
    """

    def __init__(
        self,
        message: str,
        *,
        communicator: str | None = None,
        rank: int | None = None,
        sequence: int | None = None,
        operation: str | None = None,
        nbytes: int | None = None,
        elapsed: float | None = None,
        ranks: Sequence[int] = (),
        advised: bool = False,
    ) -> None:
        super().__init__(message)
        self.communicator = communicator
        self.rank = rank
        self.sequence = sequence
        self.operation = operation
        self.nbytes = nbytes
        self.elapsed = elapsed
        self.ranks = tuple(ranks)
        self.advised = advised

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), self.args, self.__dict__.copy())


class CollectiveTimeout(CommunicationError):
    """The deadline of a call passed. The communicator has failed, except after a `WaitTimeout`.

    Attributes
    ----------
    deadline : float or None
        Seconds: the call's, or the wait's.
    """

    deadline: float | None = None


class WaitTimeout(CollectiveTimeout, TimeoutError):
    """The timeout of a wait passed. Nothing has failed: the calls that it waited for go on, and so may the program."""


class RankMismatch(CommunicationError):
    """The ranks asked for different things."""


class PeerLost(CommunicationError):
    """A rank is gone."""


def peers_lost(ranks: Sequence[int], recovery: str = "") -> PeerLost:
    """Return the error for ranks of a communicator whose processes have ended, and what can be done."""
    whom = f"{ranks_named(ranks)} {'is' if len(ranks) == 1 else 'are'}"
    remedy = f"; {recovery}" if recovery else ""
    return PeerLost(
        f"{whom} lost: the process has ended{remedy}", ranks=ranks, advised=bool(remedy)
    )


class CommunicatorAborted(CommunicationError):
    """The communicator has failed, was aborted, or belongs to another process."""


class ResultsError(HpccommError):
    """A results file cannot be written or read."""


class SchemaMismatch(ResultsError):
    """A file is not of the schema that this version reads."""


def nearest(given: str, names: Iterable[str]) -> str | None:
    """Return the name that is nearest to an unknown one; None if none is near.

    Letters are compared without their case, and without a beginning that all have in common, such as
    ``HPCCOMM_`` or ``--``: that makes no name near.
    """
    lowered = {name.lower(): name for name in names}
    ends = [0, *(end for end, letter in enumerate(given, 1) if letter in "_-")]
    begin = max(
        end for end in ends if all(each.startswith(given[:end].lower()) for each in lowered)
    )
    spelled = {each[begin:]: name for each, name in lowered.items()}
    import difflib  # a first call needs none

    near = difflib.get_close_matches(given.lower()[begin:], spelled, n=1)
    return spelled[near[0]] if near else None


def untied(error: Error) -> Error:
    """Return a copy of an error of this tree, to be raised through frames that hold the error itself.

    An error and a frame that holds it are a cycle. All arrays and objects of such frames would live
    until the garbage collector runs. The copy has the error's traceback and cause, and the error
    keeps neither.
    """
    if not isinstance(error, HpccommError):
        return error
    copied = copy.copy(error)
    copied.__traceback__, copied.__context__, copied.__cause__ = (
        error.__traceback__, error.__context__, error.__cause__,
    )  # fmt: skip
    copied.__suppress_context__ = error.__suppress_context__
    error.__traceback__ = error.__context__ = error.__cause__ = None
    return copied


def did_you_mean(given: str, names: Iterable[str], advice: str) -> str:
    """Return the advice of an error about an unknown name, after the nearest name if one is near.

    Parameters
    ----------
    given : str
        The unknown name.
    names : iterable of str
        The known ones.
    advice : str
        A phrase, such as ``"give one of ring, tree"``.
    """
    near = nearest(given, names)
    return f"did you mean {near}? {advice[0].upper()}{advice[1:]}" if near else advice
