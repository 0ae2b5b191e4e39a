"""Calls are counted by size classes whose largest sizes are powers of two, as the page on statistics lists them."""

from hpccomm.runtime.reports import size_class

KIB, MIB = 1 << 10, 1 << 20


def test_a_class_holds_its_largest_size() -> None:
    largest = (KIB, 64 * KIB, MIB, 16 * MIB, 256 * MIB)
    names = ["to 1 KiB", "to 64 KiB", "to 1 MiB", "to 16 MiB", "to 256 MiB", "above 256 MiB"]
    assert [size_class(0), size_class(1)] == ["0 B", "to 1 KiB"]
    assert [size_class(each) for each in largest] == names[:-1]
    assert [size_class(each + 1) for each in largest] == names[1:]
