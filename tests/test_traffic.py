"""Counting messages, those of plans among them."""

from hpccomm.runtime.traffic import Repeated, Traffic


def test_what_a_plan_repeats_is_counted_while_it_lives_and_afterwards() -> None:
    traffic = Traffic(3)
    traffic.sent[1] += 1
    exchange = Repeated(sources=(2, 2), targets=(1, 0))

    def plan() -> None:
        exchange.times += 1

    traffic.repeated(exchange, plan)
    plan()
    plan()
    counted = [(2, 0), (3, 0), (0, 4)]
    assert [traffic.between(rank) for rank in range(3)] == counted
    del plan
    assert [traffic.between(rank) for rank in range(3)] == counted
    traffic.repeated(
        Repeated((), ()), test_what_a_plan_repeats_is_counted_while_it_lives_and_afterwards
    )
    assert [traffic.between(rank) for rank in range(3)] == counted
    assert traffic.posted == [0, 0, 4]
