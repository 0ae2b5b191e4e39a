"""The user's functions that are called before and after each call."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from hpccomm.errors import UsageError

Arguments = TypeVar("Arguments", bound=tuple[object, ...])


@dataclass(frozen=True, slots=True)
class CallInfo:
    """One call, as hooks see it.

    Attributes
    ----------
    communicator : str
        Name of the communicator.
    rank : int
        This process's rank in it.
    sequence : int
        The call's number on this communicator, from 1.
    operation : str
        Such as ``"all_reduce"``.
    nbytes : int
        Bytes of this rank's larger array.
    elapsed : float or None
        Seconds it took; None before it has begun.
    error : BaseException or None
        What ended it, afterwards.
    """

    communicator: str
    rank: int
    sequence: int
    operation: str
    nbytes: int
    elapsed: float | None = None
    error: BaseException | None = None


Hook = Callable[[CallInfo], object]
AbortHook = Callable[[BaseException], object]
H = TypeVar("H", bound=Callable[..., object])


class Handle:
    """Takes a hook off again."""

    __slots__ = ("_remove",)

    def __init__(self, remove: Callable[[], None]) -> None:
        self._remove = remove

    def remove(self) -> None:
        """Take the hook off. May be called more than once."""
        self._remove()


class Hooks(Generic[H]):
    """The hooks of one kind, called in the order in which they were registered.

    Attributes
    ----------
    registered : tuple
        Empty where there are none, which every call asks.
    """

    __slots__ = ("registered",)

    def __init__(self) -> None:
        self.registered: tuple[tuple[object, H], ...] = ()

    def register(self, hook: H) -> Handle:
        """Add a hook.

        Raises
        ------
        UsageError
            If it cannot be called.
        """
        if not callable(hook):
            raise UsageError(f"hook is {hook!r}; give a function of one argument")
        token = object()
        self.registered = (*self.registered, (token, hook))

        def remove() -> None:
            self.registered = tuple(pair for pair in self.registered if pair[0] is not token)

        return Handle(remove)

    def __iter__(self) -> Iterator[H]:
        """Return the hooks, in order."""
        return (hook for _, hook in self.registered)

    def __call__(self, argument: object) -> None:
        """Call every hook with `argument`."""
        for _, hook in self.registered:
            hook(argument)
