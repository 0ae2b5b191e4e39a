"""Counting messages, those of plans among them."""

from hpccomm.contracts.signature import of_message
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
