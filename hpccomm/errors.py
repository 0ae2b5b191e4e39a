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

Below the tree stand the words of errors about unknown names, and the classes whose errors use them: the
nearest known name, and what hpccomm has for a name of mpi4py's, by the table ``mpi4py.tsv``, which the
documentation shows too. ``install_command`` returns the advice of errors about a missing library of an extra.
"""

import copy
import inspect
import re
import shlex
from collections.abc import Callable, Iterable, Sequence
from enum import EnumType
from functools import cache
from importlib import metadata
from typing import TYPE_CHECKING, Any, TypeVar

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


class CommunicatorAborted(CommunicationError):
    """The communicator has failed, was aborted, or belongs to another process."""


class ResultsError(HpccommError):
    """A results file cannot be written or read."""


class SchemaMismatch(ResultsError):
    """A file is not of the schema that this version reads."""


def peers_lost(ranks: Sequence[int], recovery: str = "") -> PeerLost:
    """Return the error for ranks of a communicator whose processes have ended, and what can be done."""
    whom = f"{ranks_named(ranks)} {'is' if len(ranks) == 1 else 'are'}"
    remedy = f"; {recovery}" if recovery else ""
    return PeerLost(
        f"{whom} lost: the process has ended{remedy}", ranks=ranks, advised=bool(remedy)
    )


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


@cache
def table() -> Sequence[dict[str, str]]:
    """Return the rows: section, mpi4py's names, hpccomm's code, and what differs, as reStructuredText."""
    import csv  # these take longer to load than all that is here, and only errors need them
    from importlib import resources

    text = resources.files("hpccomm").joinpath("mpi4py.tsv").read_text("utf-8")
    return tuple(
        csv.DictReader(text.splitlines(), delimiter="\t", quoting=csv.QUOTE_NONE, restval="")
    )


def ours(name: str) -> str:
    """Return in words what hpccomm has for a name of mpi4py's; empty for any other name."""
    row = next((row for row in table() if name in row["mpi4py"].split()), None)
    if row is None:
        return ""
    code, differs = (
        re.sub(r":\w+:|`", "", re.sub(r":doc:`(.*?)`", r"docs\1.rst", row[column])).strip()
        for column in ("hpccomm", "differs")
    )
    call = re.fullmatch(r"comm\.(?!plan|probe|dup|shrink)(\w+)\((.*)\)", code)
    if call and name.endswith("_init"):
        code = "comm.plan(" + ", ".join(filter(None, (f'"{call[1]}"', call[2]))) + ")"
    elif call and re.match("I[a-z]", name) and "async_op" not in code:
        code = f"comm.{call[1]}(" + ", ".join(filter(None, (call[2], "async_op=True"))) + ")"
    here = "has no counterpart" if code == "none" else f"is written {code}"
    return f"{name} is mpi4py's, and {here} here" + (f". {differs}" if differs else "")


def advice(name: str, known: Iterable[str], prefix: str = "") -> str:
    """Return what to write for a name that is not there, after a semicolon; empty where that is not clear.

    Parameters
    ----------
    name : str
        That is not there.
    known : iterable of str
        Names that are.
    prefix : str
        What precedes the name in the table, such as ``"Win."``.
    """
    if name.startswith("_"):  # libraries ask any object for such names
        return ""
    near = nearest(name, [each for each in known if not each.startswith("_")])
    said = ours(prefix + name) or (near and f"did you mean {near}?")
    return f"; {said}" if said else ""


def of_argument(name: str, call: Callable[..., Any]) -> str:
    """Return what to write for an argument that a call does not take, after a semicolon; empty where it takes it."""
    takes = inspect.signature(call).parameters
    return "" if name in takes else advice(f"{name}=", [f"{each}=" for each in takes])


def respell(error: BaseException) -> None:
    """Have Python's error about an unknown argument of a method of hpccomm's say what to write instead."""
    if not isinstance(error, TypeError):
        return
    said = re.match(
        r"(?:(\w+)\.)?(\w+)\(\) got an unexpected keyword argument '(\w+)'$", str(error)
    )
    whose, method, given = said.groups() if said else (None, "", "")
    for kind in Hinting.__subclasses__() if said else ():
        if whose in (None, kind.__name__) and hasattr(kind, method):
            error.args = (f"{error}{of_argument(given, getattr(kind, method))}",)
            return


ENDS = {
    "finalize": "a communicator, a grid or a mesh ends by finalize()",
    "close": "it ends by close(); finalize() ends communicators, grids and meshes",
}
"""What ends an object, by the method that does."""

_OTHER_ENDS = (*ENDS, "remove", "end")


class Hinting:
    """Base of classes whose errors about unknown attributes say what to write instead."""

    __slots__ = ()

    _mpi4py = ""
    """What precedes its names in the table, such as ``"Win."``."""

    if not TYPE_CHECKING:  # which is to know every name

        def __getattr__(self, name: str) -> Any:
            kind = type(self)
            said = advice(name, dir(kind), self._mpi4py)
            if name in _OTHER_ENDS:
                said = next(
                    (f"; {words}" for end, words in ENDS.items() if hasattr(kind, end)), said
                )
            raise AttributeError(f"{kind.__name__!r} object has no attribute {name!r}{said}")


class HintingEnum(EnumType):
    """Class of enumerations whose errors about unknown members say what to write instead."""

    if not TYPE_CHECKING:  # which knows the members

        def __getattr__(cls, name: str) -> Any:  # in Python 3.11 for members, too
            try:
                return cls._member_map_[name]
            except KeyError:
                said = advice(name, cls._member_map_, "MPI.")
                raise AttributeError(f"{cls.__name__} has no member {name!r}{said}") from None


def install_command(extra: str) -> str:
    """Return the command that installs the libraries of an extra, such as ``pip install scipy``.

    It names the libraries and not ``hpccomm[extra]``, which pip would look for in its index. They are
    read from the metadata of the installed package. Without any, as in a checkout that is not
    installed, it installs the extra from there.

    Parameters
    ----------
    extra : str
        One of ``[options.extras_require]`` in ``setup.cfg``.
    """
    try:
        required = metadata.requires("hpccomm") or []
    except metadata.PackageNotFoundError:
        required = []
    parts = [each.partition(";") for each in required]
    libraries = [
        library.strip() for library, _, when in parts if extra in when.replace("'", '"').split('"')
    ]
    return shlex.join(["pip", "install", *(libraries or [f".[{extra}]"])])
