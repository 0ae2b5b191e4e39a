"""Settings for a kind of machine or job, as lines for a shell: pure. `hpccomm env` prints them."""

import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

PRESETS = ("infiniband", "roce", "ethernet", "nvlink", "pcie", "debug")

PATIENCE = 100.0, 60.0
"""Deadline as a multiple of the shortest time of a call, and its least value in seconds."""


@cache
def _table() -> Mapping[str, Any]:
    return tomllib.loads(Path(__file__).with_name("presets.toml").read_text(encoding="utf-8"))


def preset(name: str, facts: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of a preset: each variable after its reason and the fact that it rests on.

    Parameters
    ----------
    name : str
        One of `PRESETS`, or ``model``.
    facts : mapping
        The machine's facts, by the names in ``presets.toml``.
    """
    for each in _table()[name]:
        least = each.get("at_least", {})
        if any(facts.get(fact, number) < number for fact, number in least.items()):
            continue
        yield f"# {each['name']}: {each['reason']}"
        try:
            value, fact = each["value"].format_map(facts), each["fact"].format_map(facts)
        except KeyError as missing:
            yield f"#   not set: {_table()['missing'][missing.args[0]]}"
            continue
        if fact:
            yield f"#   here: {fact}"
        yield f"export {each['name']}={value}"


def for_model(nbytes: int, ranks: int, facts: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines for all-reduces of `nbytes` over `ranks`: the network's, and a deadline.

    The shortest time is that of the bytes that each rank must send, 2 (ranks - 1) / ranks of the array, over one link.
    """
    moved = 2 * (ranks - 1) / ranks * nbytes
    more = dict(facts) | {"bytes": nbytes, "gigabytes": moved / 1e9}
    network = next((kind for kind in ("infiniband", "roce") if kind in facts), "ethernet")
    if network in facts:
        many, least = PATIENCE
        seconds = moved / (facts[f"{network}_rate"] * 1e9 / 8)
        more |= {"link": facts[network].partition(",")[0], "seconds": seconds}
        more["patience"] = max(many * seconds, least)
    yield f"# an all-reduce of {nbytes / 1e9:.3g} GB over {ranks} ranks: each sends {moved / 1e9:.3g} GB"
    yield from preset(network, more)
    yield from preset("model", more)
