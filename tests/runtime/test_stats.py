"""Calls are counted by size classes whose largest sizes are powers of two."""

import pytest

from hpccomm.runtime.reports import size_class

KIB, MIB = 1 << 10, 1 << 20


@pytest.mark.parametrize(
    ("nbytes", "name"),
    [
        (0, "0 B"),
        (1, "to 1 KiB"),
        (KIB, "to 1 KiB"),
        (KIB + 1, "to 64 KiB"),
        (64 * KIB, "to 64 KiB"),
        (64 * KIB + 1, "to 1 MiB"),
        (MIB, "to 1 MiB"),
        (16 * MIB, "to 16 MiB"),
        (16 * MIB + 1, "to 256 MiB"),
        (256 * MIB, "to 256 MiB"),
        (256 * MIB + 1, "above 256 MiB"),
    ],
)
def test_a_class_holds_its_largest_size(nbytes: int, name: str) -> None:
    assert size_class(nbytes) == name
