"""Rules about networks: kernel interfaces, InfiniBand, RoCE, and connections between nodes."""

import ipaddress
import statistics
from collections.abc import Callable, Mapping, Sequence
from itertools import chain, combinations
from typing import Any

from hpccomm.tools.doctor.rule import Facts, Faults, List, rules
from hpccomm.units import grouped

DAMAGE = (
    *("link_downed", "symbol_error", "link_error_recovery", "port_rcv_errors"),
    *("port_xmit_discards", "local_link_integrity_errors"),
)
"""Counters of a bad link, or of a switch that drops packets."""

RESENT = (
    *("local_ack_timeout_err", "packet_seq_err", "out_of_sequence", "implied_nak_seq_err"),
    *("rnr_nak_retry_err", "out_of_buffer", "roce_adp_retrans"),
)
"""Counters of packets that were lost or reordered, and are sent again."""

OFTEN = 10
"""Least number of times that a link went down for a comparison with others."""

FULL_PACKETS = 4200
"""MTU in bytes above which RoCE sends packets of 4096."""


FLOOD = 50
"""Least number of dropped packets that is a loss: the kernel also drops packets of unknown protocols (LLDP)."""


def _no_link(devices: List, networks: Facts | None) -> Faults:
    for each in devices:
        # An interface without bond and address that never had a link is not used.
        went = each["losses"].get("carrier_changes", 0)
        used = "bond" in each or each["name"] in (networks or ()) or went > 1
        if used and each.get("on") and each.get("state") in ("down", "lowerlayerdown"):
            of = f", of {each['bond']}," if "bond" in each else ""
            yield f"{each['name']}{of} is switched on and has no link"


def _each(sentence: str, fault: Callable[[Facts], Any]) -> Callable[[List], Faults]:
    """Return a rule that yields a sentence for each device or port with a fault; ``{found}`` in it is what `fault` returned."""

    def fails(items: List) -> Faults:
        for each in items:
            if evidence := fault(each):
                yield sentence.format(**each, found=evidence)

    return fails


def _rose(*names: str) -> Callable[[Facts], str]:
    """Return a function that says which counters rose, of these or of all."""
    return lambda each: ", ".join(
        f"{name} +{rise}"
        for name, rise in each["rising"].items()
        if name in (names or each["rising"]) and (name != "rx_dropped" or rise >= FLOOD)
    )


def _is_slow(device: Facts) -> bool:
    # An interface on USB is the one of the board's controller.
    up = device.get("state") == "up" and not device.get("usb")
    return up and bool(device.get("speed", 1000) < 1000)


def _is_half(device: Facts) -> bool:
    return device.get("duplex") == "half" and not device.get("usb")


def _reach(routes: Mapping[str, Facts]) -> Faults:
    places = grouped(
        ((own, bool(each["gateways"])), node)
        for node, each in routes.items()
        if (own := frozenset(chain(*each["networks"].values())))
    )  # without networks, a node's addresses are IPv6, or its routes are hidden
    for (one, those), (other, others) in combinations(places.items(), 2):
        closed = [nodes[0] for (_, routed), nodes in ((one, those), (other, others)) if not routed]
        if not one[0] & other[0] and closed:
            yield f"{those[0]} and {others[0]} have no network in common, and there is no router for {' and '.join(closed)}"


def _rails(ports: Mapping[str, List], routes: Mapping[str, Facts] | None) -> Faults:
    places: dict[str, dict[str, list[str]]] = {}
    for node, each in ports.items():
        reached = (routes or {}).get(node) or {"networks": {}, "gateways": ()}
        for port in filter(_active, each):
            own = {gid["prefix"] for gid in port.get("gids", ()) if "prefix" in gid}
            if port.get("link_layer") == "Ethernet":
                names = {gid.get("ndev") for gid in port.get("gids", ())}
                own = {
                    network
                    for name in names
                    for network in reached["networks"].get(name, ())
                    if not _is_routed(network, reached["gateways"])
                }
            if own:
                at = places.setdefault(_name(port), {})
                at.setdefault(", ".join(sorted(own)), []).append(node)
    for name, at in places.items():
        if len(at) > 1:
            sentences = (f"in {place} on {', '.join(nodes)}" for place, nodes in at.items())
            yield f"{name} is {'; '.join(sentences)}"


def _is_routed(network: str, gateways: Sequence[str]) -> bool:
    """Whether a router stands in a network: then each node may be in one of its own."""
    place = ipaddress.ip_network(network)
    return any(ipaddress.ip_address(gateway) in place for gateway in gateways)


def _name(port: Facts) -> str:
    return f"{port['device']} port {port['port']}"


def _active(port: Facts) -> bool:
    return bool(port.get("state") == "ACTIVE")


def _waits(port: Facts) -> bool:
    return port.get("phys_state") == "LinkUp" and port.get("state") not in (None, "ACTIVE")


def _no_fabric(ports: List) -> Faults:
    active = {_card(port) for port in ports if _active(port)}
    for port in ports:
        # The other port of a card is often free.
        used = _card(port) not in active or port["counters"].get("link_downed", 0)
        if port.get("phys_state") == "Polling" and used:
            yield f"{_name(port)} looks for a link and finds none (Polling)"


def _card(port: Facts) -> str:
    return str(port.get("pci", port["device"])).partition(".")[0]


def _rate(ports: List) -> Faults:
    kinds = grouped(
        ((port.get("board", port.get("type")), port.get("link_layer")), port)
        for port in filter(_active, ports)
        if "rate" in port
    )
    for alike in kinds.values():
        best = max(port["rate"] for port in alike)
        for port in alike:
            # One lane is usual with Ethernet: 25 Gb/s are "1X EDR".
            alone = port.get("width") == 1 and port.get("link_layer") == "InfiniBand"
            if port["rate"] < best or alone:
                words = ", {width} lanes of {generation}"
                lanes = words.format_map(port) if "width" in port else ""
                yield f"{_name(port)} runs at {port['rate']:g} Gb/s{lanes}; the best of its sort at {best:g}"


def _went_down(ports: List) -> Faults:
    times = [port["counters"].get("link_downed", 0) for port in ports]
    usual = statistics.median(times)
    for port, count in zip(ports, times, strict=True):
        if count >= OFTEN and count > OFTEN * usual:
            yield f"{_name(port)} went down {count} times since its start; the ports mostly {usual:g} times"


def _is_roce(port: Facts) -> bool:
    return _active(port) and port.get("link_layer") == "Ethernet"


def serves(port: Facts) -> bool:
    """Whether messages may pass a port: it is active, and one of RoCE has an address of its own.

    A virtual machine shows adapters whose address is that of the interface above them: they are for the kernel.
    """
    return _active(port) and (not _is_roce(port) or bool(_addresses(port)))


def _gids(port: Facts) -> list[Facts]:
    """Return the GIDs of a port at its own interfaces."""
    own = port.get("interfaces")
    gids = port.get("gids", ())
    return [gid for gid in gids if not own or (gid["ndev"] or "").partition(".")[0] in own]


def _addresses(port: Facts) -> set[str]:
    """Return the interfaces of a port that have an IPv4 address for RoCE version 2."""
    return {
        gid["ndev"] or "" for gid in _gids(port) if "address" in gid and gid["type"] == "RoCE v2"
    }


def _no_gid(ports: List, networks: Facts | None) -> Faults:
    roce = [port for port in ports if _is_roce(port)]
    for port in roce:
        names = {gid["ndev"] for gid in _gids(port)} & (networks or {}).keys()
        if not _addresses(port) and (names or any(map(_addresses, roce))):
            yield f"{_name(port)} has no GID of the type RoCE v2 with an IPv4 address"


def _packets(ports: List, devices: List) -> Faults:
    mtu = {each["name"]: each.get("mtu", FULL_PACKETS) for each in devices}
    for port in filter(_is_roce, ports):
        for name in sorted(_addresses(port) & mtu.keys()):
            if mtu[name] < FULL_PACKETS:
                yield f"{_name(port)} uses {name}, and the MTU of that is {mtu[name]}"


def _gpudirect(ports: List, gpudirect: Facts, gpus: int) -> Faults:
    if gpus and any(map(serves, ports)) and not any(gpudirect.values()):
        yield "nvidia_peermem and dma-buf are both missing, so messages of GPUs go through the host's memory"


_DEVICES, _ROUTES, _PORTS = "network.devices", "network.routes", "infiniband.ports"
_PORT = "{device} port {port}"

RULES = rules({
    "network.link": (_no_link, _DEVICES, f"{_ROUTES}.networks?"),
    "network.speed": (_each("{name} runs at {speed} Mb/s", _is_slow), _DEVICES),
    "network.duplex": (_each("{name} either sends or receives (duplex: half)", _is_half), _DEVICES),
    "network.losses": (_each("{name} lost packets while it was looked at: {found}", _rose()), _DEVICES),
    "network.reach": (_reach, _ROUTES),
    "network.rails": (_rails, _PORTS, f"{_ROUTES}?"),
    "infiniband.state": (_each(f"{_PORT} has a link, and is in the state {{state}}", _waits), _PORTS),
    "infiniband.link": (_no_fabric, _PORTS),
    "infiniband.rate": (_rate, _PORTS),
    "infiniband.errors": (_each(f"errors of {_PORT} rose while it was looked at: {{found}}", _rose(*DAMAGE)), _PORTS),
    "infiniband.went_down": (_went_down, _PORTS),
    "infiniband.resent": (_each(f"{_PORT} sent again while it was looked at: {{found}}", _rose(*RESENT)), _PORTS),
    "infiniband.gpudirect": (_gpudirect, _PORTS, "infiniband.gpudirect", "gpus.count"),
    "roce.gid": (_no_gid, _PORTS, f"{_ROUTES}.networks?"),
    "roce.packets": (_packets, _PORTS, _DEVICES),
})  # fmt: skip
