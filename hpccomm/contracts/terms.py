"""What ranks must ask for alike in one call."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from zlib import crc32


@dataclass(frozen=True, slots=True)
class Terms:
    """What must be equal on all ranks in one call.

    Attributes
    ----------
    values : mapping of str to plain data
        Such as count, dtype, reduction, root and algorithm, for people and for JSON.
    fingerprint : int
        32 bits, which differ where the values do, but for one pair in four thousand million.
    """

    values: Mapping[str, object]
    fingerprint: int


def terms(values: Mapping[str, object]) -> Terms:
    """Return terms of these values, which JSON can hold."""
    return Terms(values, crc32(json.dumps(values, sort_keys=True).encode()))
