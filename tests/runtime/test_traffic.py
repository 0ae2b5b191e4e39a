"""Counts: messages, those of plans among them, and calls by classes of sizes, as the page on statistics lists these."""

from hpccomm.contracts.signature import of_message
from hpccomm.runtime.reports import size_class
from hpccomm.runtime.traffic import CHANNELS, OTHERS, Traffic


def test_channels_beyond_those_that_are_told_apart_are_counted_together() -> None:
    traffic = Traffic()
    for tag in (*range(CHANNELS + 2), 1):
        traffic.cell(5, tag)[0] += 1
    told = {channel: sent for channel, sent, _ in traffic.between(5)}
    assert told == dict.fromkeys(range(CHANNELS), 1) | {1: 2, OTHERS: 2}
    assert traffic.between(4) == []


def test_a_message_has_its_number_also_where_others_have_begun_after_it() -> None:
    traffic, send = Traffic(), of_message("send", 8, (5, None), 3, 6)
    traffic.cell(5, 6)[0] += 3
    (wait,) = traffic.waits(send, [], [send, of_message("send", 8, (5, None), 4, 8)])
    assert (wait["number"], wait["sure"]) == (2, True)
    for more in ({"exact": False}, {"later": [send._replace(name="batch")]}):
        assert not traffic.waits(send, **more)[0]["sure"]


def test_a_class_holds_its_largest_size() -> None:
    kib, mib = 1 << 10, 1 << 20
    largest = (kib, 64 * kib, mib, 16 * mib, 256 * mib)
    names = ["to 1 KiB", "to 64 KiB", "to 1 MiB", "to 16 MiB", "to 256 MiB", "above 256 MiB"]
    assert [size_class(0), size_class(1)] == ["0 B", "to 1 KiB"]
    assert [size_class(each) for each in largest] == names[:-1]
    assert [size_class(each + 1) for each in largest] == names[1:]
