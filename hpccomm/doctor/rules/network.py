"""Networks: interfaces of the kernel, InfiniBand, RoCE, and whether nodes reach each other."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
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


def _slow(devices: List) -> Iterator[str]:
    for each in devices:
        if each.get("state") == "up" and each.get("speed", 1000) < 1000:
            yield f"{each['name']} runs at {each['speed']} Mb/s"


def _half(devices: List) -> Iterator[str]:
    for each in devices:
        if each.get("duplex") == "half":
            yield f"{each['name']} sends or receives, and not both at once (duplex: half)"


def _losses(devices: List) -> Iterator[str]:
    for each in devices:
        if rising := each.get("rising"):
            yield f"{each['name']} lost packets while it was looked at: {_counts(rising)}"


def _counts(rising: Mapping[str, int]) -> str:
    return ", ".join(f"{name} +{rise}" for name, rise in rising.items())


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


def _state(ports: List) -> Iterator[str]:
    for port in ports:
        if port.get("phys_state") == "LinkUp" and not _active(port):
            yield f"{_name(port)} has a link, and is in the state {port.get('state')}"


def _polling(ports: List) -> Iterator[str]:
    for port in ports:
        if port.get("phys_state") == "Polling":
            yield f"{_name(port)} looks for a link and finds none (Polling)"


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


def _damage(ports: List) -> Iterator[str]:
    for port in ports:
        if rising := {name: rise for name, rise in port["rising"].items() if name in DAMAGE}:
            yield f"errors of {_name(port)} rose while it was looked at: {_counts(rising)}"


def _went_down(ports: List) -> Iterator[str]:
    times = [port["counters"].get("link_downed", 0) for port in ports]
    usual = statistics.median(times)
    for port, count in zip(ports, times, strict=True):
        if count >= OFTEN and count > OFTEN * usual:
            yield f"{_name(port)} went down {count} times since its start; the ports mostly {usual:g} times"


def _resent(ports: List) -> Iterator[str]:
    for port in ports:
        if rising := {name: rise for name, rise in port["rising"].items() if name in RESENT}:
            yield f"{_name(port)} sent again while it was looked at: {_counts(rising)}"


def _gid(ports: List) -> Iterator[str]:
    for port in _roce(ports):
        if not any("address" in gid and gid["type"] == "RoCE v2" for gid in port.get("gids", ())):
            yield f"{_name(port)} has no GID of the type RoCE v2 with an IPv4 address"


def _roce(ports: List) -> list[Facts]:
    return [port for port in ports if _active(port) and port.get("link_layer") == "Ethernet"]


def _packets(ports: List, devices: List) -> Iterator[str]:
    mtu = {each["name"]: each.get("mtu", FULL_PACKETS) for each in devices}
    for port in _roce(ports):
        for name in sorted({gid.get("ndev") or "" for gid in port.get("gids", ())} & mtu.keys()):
            if mtu[name] < FULL_PACKETS:
                yield f"{_name(port)} is by {name}, whose MTU is {mtu[name]}"


def _gpudirect(ports: List, gpudirect: Facts, gpus: int) -> Iterator[str]:
    if gpus and any(map(_active, ports)) and not any(gpudirect.values()):
        yield "neither nvidia_peermem nor dma-buf is there, so that messages of GPUs pass the host's memory"


_PORTS = "infiniband.ports"

RULES = rules({
    "network.link": (_no_link, "network.devices"),
    "network.speed": (_slow, "network.devices"),
    "network.duplex": (_half, "network.devices"),
    "network.losses": (_losses, "network.devices"),
    "network.reach": (_reach, "network.routes"),
    "network.rails": (_rails, _PORTS, "network.routes?"),
    "infiniband.state": (_state, _PORTS),
    "infiniband.link": (_polling, _PORTS),
    "infiniband.rate": (_rate, _PORTS),
    "infiniband.errors": (_damage, _PORTS),
    "infiniband.went_down": (_went_down, _PORTS),
    "infiniband.resent": (_resent, _PORTS),
    "infiniband.gpudirect": (_gpudirect, _PORTS, "infiniband.gpudirect", "gpus.count"),
    "roce.gid": (_gid, _PORTS),
    "roce.packets": (_packets, _PORTS, "network.devices"),
})  # fmt: skip
