"""What stands for device memory where no device arrays can be used."""

from collections.abc import Iterator
from typing import Any, NoReturn

from numpy.typing import NDArray

from hpccomm.backends.control import Control
from hpccomm.contracts.choice import Choice
from hpccomm.contracts.transport import Steps
from hpccomm.dtypes import DType
from hpccomm.errors import BackendUnavailable
from hpccomm.memory.views import View


class RefusingLane:
    """Refuses device arrays.

    Parameters
    ----------
    communicator : str
        Name of the communicator.
    reason : str
        Why it takes none.
    """

    name = None
    memory = "device"
    backend = None

    def __init__(self, communicator: str, reason: str) -> None:
        self.reason = reason
        self._communicator = communicator

    def abandon(self) -> None:
        """Do nothing."""

    def fitting(self, _x: View | None, _out: View | None) -> NoReturn:
        """Refuse a call's arrays.

        Raises
        ------
        BackendUnavailable
            Always.
        """
        raise BackendUnavailable(
            f"communicator {self._communicator!r} takes no device arrays: {self.reason}. "
            "Or copy them to NumPy arrays first"
        )

    def empty_on(self, device: int, _shape: tuple[int, ...], _dtype: DType) -> NoReturn:
        """Refuse to make a device array.

        Raises
        ------
        BackendUnavailable
            Always.
        """
        raise BackendUnavailable(
            f"device is {device}, and communicator {self._communicator!r} takes no device arrays: "
            f"{self.reason}. Or leave it out, for an array of the host"
        )

    def tried(
        self, _given: NDArray[Any], _control: Control
    ) -> Iterator[tuple[Choice, NDArray[Any]]]:
        """Yield nothing: there is no way to try."""
        return iter(())

    def settling(self) -> Steps:
        """Return no steps: nothing is under way."""
        return iter(())

    def close(self) -> None:
        """Do nothing: it owns nothing."""
