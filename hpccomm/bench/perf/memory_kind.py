"""The interface of host memory and device memory to what is measured in them."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

from numpy.typing import NDArray

from hpccomm.bench.perf.timing import Call, Timed
from hpccomm.dtypes import DType
from hpccomm.results.schema import DeviceInfo

AUTO, HOST, DEVICE = "auto", "host", "device"
"""Where arrays may lie, as ``--arrays`` has it."""

NCCL = "nccl"
"""The backend that device arrays are for."""

Array = Any
"""A 1-D array of NumPy or CuPy."""


class DeviceDescription(NamedTuple):
    """One rank's device in the header: the fields of `RankInfo`, and more."""

    device: int
    device_hex: str
    device_info: str
    driver: str
    more: DeviceInfo | None


ON_HOST = DeviceDescription(-1, "", "host memory", "", None)
"""Of a rank whose arrays are in host memory."""


class MemoryKind(Protocol):
    """Arrays of one kind, on one rank, over one communicator: made, filled, timed, compared.

    Attributes
    ----------
    name : str
        `HOST` or `DEVICE`.
    usage : str
        Title of the line that reports the memory in use.
    at_once : bool
        Whether a batch is carried out at once, so that its operations need arrays of their own.
    multiplies : bool
        Whether averages of floats are sums of what was multiplied before (see `CheckedData`).
    """

    name: str
    usage: str
    at_once: bool
    multiplies: bool

    def entered(self) -> AbstractContextManager[None]:
        """Return a context in which all else is done."""

    def backend(self) -> str:
        """Return the name of what moves such arrays, as it is printed."""

    def some(self, count: int, dtype: DType) -> Array:
        """Return an array like those that are measured; its contents do not matter."""

    def description(self) -> DeviceDescription:
        """Return this rank's device for the header. Local."""

    def versions(self) -> dict[str, str]:
        """Return the versions of the libraries that only such arrays need. Local."""

    def room(self) -> tuple[str, int]:
        """Return the name of where memory is taken from, and the bytes available there."""

    def in_use(self) -> int:
        """Return the bytes that are in use, for ``-M``."""

    def allocate(self, largest: int) -> None:
        """Make the slots, `memory.SLOTS` of them, for `largest` bytes each, all zeros. Local."""

    def release(self) -> None:
        """Let go of the slots."""

    def view(self, slot: int, first: int, count: int, dtype: DType) -> Array:
        """Return `count` elements from byte `first` of a slot on."""

    def clear(self, slot: int, nbytes: int) -> None:
        """Put zeros at the start of a slot."""

    def spread(self, slot: int, first: int, nbytes: int, times: int) -> None:
        """Repeat bytes of a slot behind themselves until there are `times` copies of them."""

    def copy(self, out: Array, x: Array) -> None:
        """Copy an array, as a part of what is timed."""

    def put(self, array: Array, at: int, block: NDArray[Any]) -> None:
        """Write a block of NumPy into an array, from index `at` on."""

    def read(self, array: Array, at: int, count: int) -> NDArray[Any]:
        """Return `count` elements of an array from index `at` on, as an array of NumPy."""

    def settle(self) -> None:
        """Block until what was called is done.

        Raises
        ------
        CollectiveTimeout
            If it is not within the deadline.
        """

    def time(self, operations: Sequence[Call], samples: bool) -> Timed:
        """Time a block of operations, and each repetition if `samples` is true.

        Collective; blocks until all is done.
        """
