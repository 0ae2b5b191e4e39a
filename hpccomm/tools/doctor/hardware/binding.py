"""Where the ranks of a job run, their distance from GPU and adapter, and better bindings.

`hpccomm.tools.doctor.topo` prints it.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from hpccomm.tools.doctor.hardware.facts import Component, NodeHardware
from hpccomm.units import numbers, ranges


class BoundRank(NamedTuple):
    """A rank of a job, and its permitted CPUs.

    Attributes
    ----------
    rank, local_rank : int
        In the job, and on its node.
    host : str
        Its node.
    cpus : tuple of int
        As its launcher has bound it.
    visible : str
        ``CUDA_VISIBLE_DEVICES``; empty if it is not set.
    """

    rank: int
    local_rank: int
    host: str
    cpus: tuple[int, ...]
    visible: str = ""


def bound_ranks(trees: Mapping[str, Mapping[str, Any]]) -> list[BoundRank]:
    """Return the ranks of a job, from the facts of its nodes."""
    ranks = [
        BoundRank(
            each["rank"], local, host, tuple(numbers(each["cores"])),
            each.get("variables", {}).get("CUDA_VISIBLE_DEVICES", ""),
        )
        for host, tree in trees.items()
        for local, each in enumerate(tree.get("ranks", ()))
    ]  # fmt: skip
    return sorted(ranks)


def gpu_of(bound: BoundRank, node: NodeHardware) -> Component | None:
    """Return the GPU of a rank: by its number among the visible ones, as `new_comm` chooses."""
    gpus = node.of_kind("gpu")
    if bound.visible:
        chosen = [int(word) for word in bound.visible.split(",") if word.isdigit()]
        gpus = [gpus[at] for at in chosen if at < len(gpus)] or gpus
    return gpus[bound.local_rank % len(gpus)] if gpus else None


def nic_of(bound: BoundRank, node: NodeHardware) -> Component | None:
    """Return the network adapter of a rank: the nearest to its GPU, else to its cores; ranks share equally near ones."""
    nics = [nic for nic in node.of_kind("nic") if nic.rate] or node.of_kind("nic")
    gpu = gpu_of(bound, node)
    if gpu is not None:
        nics = [nic for nic in node.nearest(gpu, "nic") if nic in nics] or nics
    else:
        nics = [nic for nic in nics if nic.domain in homes(bound, node)] or nics
    return nics[bound.local_rank % len(nics)] if nics else None


def homes(bound: BoundRank, node: NodeHardware) -> list[int]:
    """Return the NUMA nodes in which a rank may run."""
    return [domain.number for domain in node.domains if set(domain.cpus) & set(bound.cpus)]


def distance(bound: BoundRank, part: Component, node: NodeHardware) -> str:
    """Return in words how far a component is from the cores of a rank."""
    own = homes(bound, node)
    if part.domain is None or not own:
        return f"{part.name}, NUMA node unknown"
    if own == [part.domain]:
        return f"{part.name} beside them"
    if part.domain in own:
        return f"{part.name} beside some of them (NUMA {part.domain})"
    domains = {domain.number: domain for domain in node.domains}
    far = domains[own[0]].distances
    order = list(domains)
    steps = f", distance {far[order.index(part.domain)]}" if len(far) == len(order) else ""
    return f"{part.name} far (NUMA {part.domain}{steps})"


def lines(ranks: Sequence[BoundRank], nodes: Mapping[str, NodeHardware]) -> Iterator[str]:
    """Yield a line for each rank."""
    for bound in ranks:
        node = nodes[bound.host]
        own = homes(bound, node)
        parts = (gpu_of(bound, node), nic_of(bound, node))
        near = [distance(bound, part, node) for part in parts if part is not None]
        numa = f"NUMA {ranges(own)}" if own else "no NUMA node known"
        cores = f"CPUs {ranges(bound.cpus)} ({numa})"
        yield f"  rank {bound.rank} on {bound.host}: {'; '.join([cores, *near])}"


def wanted(local: int, node: NodeHardware) -> list[int]:
    """Return the NUMA node nearest to its GPU, for each rank of a node.

    Without one, ranks are spread over the NUMA nodes that have CPUs.
    """
    with_cpus = [domain for domain in node.domains if domain.cpus]
    spread = [domain.number for domain in with_cpus]
    result = []
    for number in range(local):
        part = gpu_of(BoundRank(number, number, node.name, ()), node)
        home = part.domain if part is not None else None
        result.append(spread[number * len(spread) // local] if home not in spread else home)
    return [home for home in result if home is not None]


def better(ranks: Sequence[BoundRank], nodes: Mapping[str, NodeHardware]) -> Iterator[str]:
    """Yield the lines about a better binding: for mpiexec and for srun, or why none is better."""
    host = ranks[0].host
    node = nodes[host]
    local = [bound for bound in ranks if bound.host == host]
    if sum(bool(domain.cpus) for domain in node.domains) < 2:
        yield "Binding: there is one NUMA node, and all its cores are as near."
        return
    homes_wanted = wanted(len(local), node)
    aim = "nearest to its GPU" if node.of_kind("gpu") else "of its turn"
    if all(homes(bound, node) == [home] for bound, home in zip(local, homes_wanted, strict=True)):
        yield f"Binding: each rank runs in the NUMA node {aim}."
        return
    yield f"Binding that keeps each rank in the NUMA node {aim}:"
    yield from (f"  {line}" for line in commands(len(ranks), homes_wanted, node))


def commands(size: int, homes_wanted: Sequence[int], node: NodeHardware) -> tuple[str, str]:
    """Return the command lines of mpiexec and srun that bind the ranks of each node to NUMA nodes.

    Parameters
    ----------
    size : int
        Ranks of the job.
    homes_wanted : sequence of int
        The NUMA node of each rank of a node.
    node : NodeHardware
        What each node is made of.
    """
    local = len(homes_wanted)
    cpus = {domain.number: ranges(domain.cpus) for domain in node.domains}
    lists = " ".join(cpus[home] for home in homes_wanted)
    numbers = ",".join(map(str, homes_wanted))
    script = (
        f"set -- {lists}; shift ${{OMPI_COMM_WORLD_LOCAL_RANK:-$MPI_LOCALRANKID}}; "
        f"exec taskset -c $1 PROGRAM"
    )
    return (
        f"mpiexec -n {size} --bind-to none sh -c '{script}'",
        f"srun -n {size} --ntasks-per-node={local} --cpu-bind=map_ldom:{numbers} PROGRAM",
    )
