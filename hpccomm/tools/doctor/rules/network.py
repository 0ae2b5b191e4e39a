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
"""A port goes down often if its link did so this number of times, and more than this number of times as often as the
median of all ports."""

FULL_PACKETS = 4200
"""The smallest MTU in bytes with which RoCE sends packets of 4096."""


FLOOD = 50
"""The smallest rise of ``rx_dropped`` that is a fault. The kernel also counts packets of unknown protocols there, such as
LLDP."""


def _interface_without_link(devices: List, networks: Facts | None) -> Faults:
    for each in devices:
        # An interface counts as unused if it has no bond and no address, and never had a link.
        changes = each["losses"].get("carrier_changes", 0)
        used = "bond" in each or each["name"] in (networks or ()) or changes > 1
        if used and each.get("on") and each.get("state") in ("down", "lowerlayerdown"):
            of = f", of {each['bond']}," if "bond" in each else ""
            yield f"{each['name']}{of} is switched on and has no link"


def _each(sentence: str, fault: Callable[[Facts], Any]) -> Callable[[List], Faults]:
    """Return a rule that yields `sentence` for each faulty device or port. The result of `fault` replaces ``{found}``."""

    def fails(items: List) -> Faults:
        for each in items:
            if evidence := fault(each):
                yield sentence.format(**each, found=evidence)

    return fails


def _rose(*names: str) -> Callable[[Facts], str]:
    """Return a function that lists the counters that rose. Without names, it looks at all counters."""
    return lambda each: ", ".join(
        f"{name} +{rise}"
        for name, rise in each["rising"].items()
        if name in (names or each["rising"]) and (name != "rx_dropped" or rise >= FLOOD)
    )


def _is_slow(device: Facts) -> bool:
    # Interfaces on USB are left out: they lead to the board's management controller.
    up = device.get("state") == "up" and not device.get("usb")
    return up and bool(device.get("speed", 1000) < 1000)


def _is_half(device: Facts) -> bool:
    return device.get("duplex") == "half" and not device.get("usb")


def _reach(routes: Mapping[str, Facts]) -> Faults:
    # A node without networks is left out: it has IPv6 addresses alone, or its routes are hidden.
    places = grouped(
        ((networks, bool(each["gateways"])), node)
        for node, each in routes.items()
        if (networks := frozenset(chain(*each["networks"].values())))
    )
    firsts = [(*place, nodes[0]) for place, nodes in places.items()]
    for one, other in combinations(firsts, 2):
        closed = [node for _, routed, node in (one, other) if not routed]
        if closed and not one[0] & other[0]:
            yield f"{one[2]} and {other[2]} have no network in common, and there is no router for {' and '.join(closed)}"


def _rails(ports: Mapping[str, List], routes: Mapping[str, Facts] | None) -> Faults:
    places: dict[str, dict[str, list[str]]] = {}
    for node, each in ports.items():
        reached = (routes or {}).get(node) or {"networks": {}, "gateways": ()}
        for port in filter(_active, each):
            own = {gid["prefix"] for gid in port.get("gids", ()) if "prefix" in gid}
            if port.get("link_layer") == "Ethernet":
                names = {gid["ndev"] for gid in _gids(port)}
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
    """Return whether a gateway lies in the network. If one does, the nodes may be in different networks."""
    place = ipaddress.ip_network(network)
    return any(ipaddress.ip_address(gateway) in place for gateway in gateways)


def _name(port: Facts) -> str:
    return f"{port['device']} port {port['port']}"


def _active(port: Facts) -> bool:
    return bool(port.get("state") == "ACTIVE")


def _is_inactive(port: Facts) -> bool:
    return port.get("phys_state") == "LinkUp" and port.get("state") not in (None, "ACTIVE")


def _port_without_link(ports: List) -> Faults:
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
                yield f"{_name(port)} runs at {port['rate']:g} Gb/s{lanes}; the fastest port of this kind runs at {best:g} Gb/s"


def _went_down(ports: List) -> Faults:
    times = [port["counters"].get("link_downed", 0) for port in ports]
    usual = statistics.median(times)
    for port, count in zip(ports, times, strict=True):
        if count >= OFTEN and count > OFTEN * usual:
            yield f"the link of {_name(port)} went down {count} times; the median of all ports is {usual:g}"


def _is_roce(port: Facts) -> bool:
    return _active(port) and port.get("link_layer") == "Ethernet"


def serves(port: Facts) -> bool:
    """Return whether a port can carry messages: it is active and, with RoCE, has an address on its own interface.

    In a virtual machine, some adapters have only the address of an interface above them. The kernel alone uses these.
    """
    return _active(port) and (not _is_roce(port) or bool(_addresses(port)))


def _gids(port: Facts) -> list[Facts]:
    """Return the GIDs of a port that belong to its adapter's own interfaces."""
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


def _small_packets(ports: List, devices: List) -> Faults:
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
    "network.link": (_interface_without_link, _DEVICES, f"{_ROUTES}.networks?"),
    "network.speed": (_each("{name} runs at {speed} Mb/s", _is_slow), _DEVICES),
    "network.duplex": (_each("{name} either sends or receives (duplex: half)", _is_half), _DEVICES),
    "network.losses": (_each("{name} lost packets or its link while it was watched: {found}", _rose()), _DEVICES),
    "network.reach": (_reach, _ROUTES),
    "network.rails": (_rails, _PORTS, f"{_ROUTES}?"),
    "infiniband.state": (_each(f"{_PORT} has a link, and is in the state {{state}}", _is_inactive), _PORTS),
    "infiniband.link": (_port_without_link, _PORTS),
    "infiniband.rate": (_rate, _PORTS),
    "infiniband.errors": (_each(f"errors of {_PORT} rose while it was watched: {{found}}", _rose(*DAMAGE)), _PORTS),
    "infiniband.went_down": (_went_down, _PORTS),
    "infiniband.resent": (_each(f"{_PORT} sent packets again while it was watched: {{found}}", _rose(*RESENT)), _PORTS),
    "infiniband.gpudirect": (_gpudirect, _PORTS, "infiniband.gpudirect", "gpus.count"),
    "roce.gid": (_no_gid, _PORTS, f"{_ROUTES}.networks?"),
    "roce.packets": (_small_packets, _PORTS, _DEVICES),
})  # fmt: skip
