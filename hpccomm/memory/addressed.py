"""NumPy arrays over memory at an address."""

import numpy as np
from numpy.typing import NDArray


class AddressedBytes:
    """Memory from which NumPy makes an array of bytes without reading it.

    It is the base of that array, and stays while views of it exist.

    Parameters
    ----------
    pointer : int
        Address.
    nbytes : int
        Size, at least 1.
    owner : object
        What must live as long.
    """

    __slots__ = ("__array_interface__", "__weakref__", "_owner")

    def __init__(self, pointer: int, nbytes: int, owner: object = None) -> None:
        self._owner = owner
        self.__array_interface__ = {
            "version": 3,
            "typestr": "|u1",
            "shape": (nbytes,),
            "data": (pointer, False),
        }

    def array(self) -> NDArray[np.uint8]:
        """Return the array."""
        return np.asarray(self)
