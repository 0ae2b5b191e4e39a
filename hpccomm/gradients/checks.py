"""Checks settings before ranks compare them, and gives them one type, and so one text.

`settings` and the compressors check their values here.
"""

from collections.abc import Callable
from math import isfinite
from typing import get_args

import numpy as np

from hpccomm.errors import UsageError, did_you_mean
from hpccomm.settings import check_int


def set_checked(settings: object, **values: object) -> None:
    """Give a frozen dataclass the values that were checked. Ranks compare their texts."""
    for name, value in values.items():
        object.__setattr__(settings, name, value)


def check_choice(name: str, value: object, kind: object) -> str:
    """Return a setting as a str, if it is one of the texts that a Literal names.

    Raises
    ------
    UsageError
        With the texts, and the nearest one.
    """
    known = get_args(kind)
    if value not in known:
        advice = did_you_mean(str(value), known, f"give one of {', '.join(known)}")
        raise UsageError(f"{name} is {value!r}; {advice}")
    return str(value)


def check_least(name: str, value: object, least: int) -> int:
    """Return a setting as an int.

    Raises
    ------
    UsageError
        If it is not an integer of at least `least`.
    """
    number = check_int(name, value)
    if number < least:
        raise UsageError(f"{name} is {number}; give at least {least}")
    return number


def check_number(name: str, value: object, fits: Callable[[float], bool], range_: str) -> float:
    """Return a setting as a float.

    Parameters
    ----------
    name : str
        Of the setting.
    value : object
        What was given.
    fits : callable
        Returns whether a finite number is in the range.
    range_ : str
        The same in words, such as ``"above 0"``.

    Raises
    ------
    UsageError
        If it is not a finite number in the range.
    """
    real = isinstance(value, int | float | np.integer | np.floating)
    huge = isinstance(value, int) and value.bit_length() > 1023  # no float holds it
    if huge or not real or not isfinite(value) or not fits(float(value)):  # type: ignore[arg-type]
        raise UsageError(f"{name} is {value!r}; give a finite number {range_}")
    return float(value)  # type: ignore[arg-type]
