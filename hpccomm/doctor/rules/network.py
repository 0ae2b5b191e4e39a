"""Networks: interfaces of the kernel, InfiniBand, RoCE, and whether nodes reach each other."""

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

from hpccomm.doctor.rule import rules

Facts = Mapping[str, Any]
List = Sequence[Facts]

DAMAGE = (
    *("link_downed", "symbol_error", "link_error_recovery", "port_rcv_errors"),
    *("port_xmit_discards", "local_link_integrity_errors"),
)
"""Counters of a link that is bad, or of a switch that throws away."""

RESENT = (
    *("local_ack_timeout_err", "packet_seq_err", "out_of_sequence", "implied_nak_seq_err"),
    *("rnr_nak_retry_err", "out_of_buffer", "roce_adp_retrans"),
)
"""Counters of packets that came not, or in disorder, and are sent again."""

OFTEN = 10
"""Times that a link may have gone down before it is compared with others."""

FULL_PACKETS = 4200
"""Bytes of an interface's MTU from which on RoCE sends packets of 4096."""


def _no_link(devices: List) -> Iterator[str]:
    for each in devices:
        if each.get("on") and each.get("state") in ("down", "lowerlayerdown"):
            of = f", of {each['bond']}," if "bond" in each else ""
            yield f"{each['name']}{of} is switched on and has no link"


def _each(sentence: str, fault: Callable[[Facts], Any]) -> Callable[[List], Iterator[str]]:
    """Return what says a sentence of each device or port with a fault; ``{found}`` in it is what `fault` returned."""

    def fails(items: List) -> Iterator[str]:
        for each in items:
            if found := fault(each):
                yield sentence.format(**each, found=found)

    return fails


def _rose(*names: str) -> Callable[[Facts], str]:
    """Return what says which counters rose, of these or of all."""
    return lambda each: ", ".join(
        f"{name} +{rise}"
        for name, rise in each["rising"].items()
        if name in (names or each["rising"])
    )


def _is_slow(device: Facts) -> bool:
    return bool(device.get("state") == "up" and device.get("speed", 1000) < 1000)


def _is_half(device: Facts) -> bool:
    return bool(device.get("duplex") == "half")


def _reach(routes: Mapping[str, Facts]) -> Iterator[str]:
    for (one, own), (other, theirs) in combinations(routes.items(), 2):
        mine, yours = (
            {network for networks in each["networks"].values() for network in networks}
            for each in (own, theirs)
        )
        closed = [node for node, each in ((one, own), (other, theirs)) if not each["gateways"]]
        if not mine & yours and closed:
            yield f"{one} and {other} have no network in common, and {' and '.join(closed)} no router"


def _rails(ports: Mapping[str, List], routes: Mapping[str, Facts] | None) -> Iterator[str]:
    places: dict[str, dict[str, list[str]]] = {}
    for node, each in ports.items():
        networks = (routes or {}).get(node, {}).get("networks", {})
        for port in filter(_active, each):
            own = {gid["prefix"] for gid in port.get("gids", ()) if "prefix" in gid}
            if port.get("link_layer") == "Ethernet":
                names = {gid.get("ndev") for gid in port.get("gids", ())}
                own = {network for name in names for network in networks.get(name, ())}
            if own:
                at = places.setdefault(_name(port), {})
                at.setdefault(", ".join(sorted(own)), []).append(node)
    for name, at in places.items():
        if len(at) > 1:
            found = (f"in {place} on {', '.join(nodes)}" for place, nodes in at.items())
            yield f"{name} is {'; '.join(found)}"


def _name(port: Facts) -> str:
    return f"{port['device']} port {port['port']}"


def _active(port: Facts) -> bool:
    return bool(port.get("state") == "ACTIVE")


def _waits(port: Facts) -> bool:
    return port.get("phys_state") == "LinkUp" and port.get("state") not in (None, "ACTIVE")


def _polls(port: Facts) -> bool:
    return bool(port.get("phys_state") == "Polling")


def _rate(ports: List) -> Iterator[str]:
    kinds: dict[Any, list[Facts]] = {}
    for port in filter(_active, ports):
        if "rate" in port:
            kinds.setdefault((port.get("type"), port.get("link_layer")), []).append(port)
    for alike in kinds.values():
        best = max(port["rate"] for port in alike)
        for port in alike:
            if port["rate"] < best or port.get("width") == 1:
                lanes = (
                    f", {port['width']} lanes of {port['generation']}" if "width" in port else ""
                )
                yield f"{_name(port)} runs at {port['rate']:g} Gb/s{lanes}; the best of its sort at {best:g}"


def _went_down(ports: List) -> Iterator[str]:
    times = [port["counters"].get("link_downed", 0) for port in ports]
    usual = statistics.median(times)
    for port, count in zip(ports, times, strict=True):
        if count >= OFTEN and count > OFTEN * usual:
            yield f"{_name(port)} went down {count} times since its start; the ports mostly {usual:g} times"


def _is_roce(port: Facts) -> bool:
    return _active(port) and port.get("link_layer") == "Ethernet"


def _lacks_gid(port: Facts) -> bool:
    gids = port.get("gids", ())
    return _is_roce(port) and not any("address" in gid and gid["type"] == "RoCE v2" for gid in gids)


def _packets(ports: List, devices: List) -> Iterator[str]:
    mtu = {each["name"]: each.get("mtu", FULL_PACKETS) for each in devices}
    for port in filter(_is_roce, ports):
        for name in sorted({gid.get("ndev") or "" for gid in port.get("gids", ())} & mtu.keys()):
            if mtu[name] < FULL_PACKETS:
                yield f"{_name(port)} is by {name}, whose MTU is {mtu[name]}"


def _gpudirect(ports: List, gpudirect: Facts, gpus: int) -> Iterator[str]:
    if gpus and any(map(_active, ports)) and not any(gpudirect.values()):
        yield "neither nvidia_peermem nor dma-buf is there, so that messages of GPUs pass the host's memory"


_DEVICES, _ROUTES, _PORTS = "network.devices", "network.routes", "infiniband.ports"
_PORT = "{device} port {port}"

RULES = rules({
    "network.link": (_no_link, _DEVICES),
    "network.speed": (_each("{name} runs at {speed} Mb/s", _is_slow), _DEVICES),
    "network.duplex": (_each("{name} either sends or receives (duplex: half)", _is_half), _DEVICES),
    "network.losses": (_each("{name} lost packets while it was looked at: {found}", _rose()), _DEVICES),
    "network.reach": (_reach, _ROUTES),
    "network.rails": (_rails, _PORTS, f"{_ROUTES}?"),
    "infiniband.state": (_each(f"{_PORT} has a link, and is in the state {{state}}", _waits), _PORTS),
    "infiniband.link": (_each(f"{_PORT} looks for a link and finds none (Polling)", _polls), _PORTS),
    "infiniband.rate": (_rate, _PORTS),
    "infiniband.errors": (_each(f"errors of {_PORT} rose while it was looked at: {{found}}", _rose(*DAMAGE)), _PORTS),
    "infiniband.went_down": (_went_down, _PORTS),
    "infiniband.resent": (_each(f"{_PORT} sent again while it was looked at: {{found}}", _rose(*RESENT)), _PORTS),
    "infiniband.gpudirect": (_gpudirect, _PORTS, "infiniband.gpudirect", "gpus.count"),
    "roce.gid": (_each(f"{_PORT} has no GID of the type RoCE v2 with an IPv4 address", _lacks_gid), _PORTS),
    "roce.packets": (_packets, _PORTS, _DEVICES),
})  # fmt: skip
