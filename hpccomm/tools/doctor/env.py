"""List the variables of NCCL, hpccomm, MPI, UCX, libfabric and CUDA that are set, each with a verdict.

Variables are read from the environment and from NCCL's files. Each fault has a remedy. Under
mpiexec or srun the variables of all ranks are compared, and rank 0 reports.

It also explains variables (--list), and prints settings for a kind of machine (--preset) or of job (--for-model).

Examples
--------
  hpccomm env
  mpiexec -n 8 hpccomm env --json > good.json
  mpiexec -n 8 hpccomm env --against good.json
  hpccomm env --list NCCL_BUFFSIZE UCX_TLS
  hpccomm env --preset roce
  hpccomm env --for-model 14G --ranks 64

Exit status: 0 if all is well, 1 if a variable should be changed or differs from FILE, 2 if it could not look.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any

from hpccomm import settings
from hpccomm.backends.bootstrap.launch import launched
from hpccomm.backends.nccl.facts import version_text
from hpccomm.contracts import variables
from hpccomm.contracts.variables import ENVIRONMENT, RANKS, VariableSetting, VariableVerdict
from hpccomm.errors import ConfigurationError, HpccommError, UsageError, did_you_mean
from hpccomm.tools import flags, output
from hpccomm.tools.doctor.reading import read, saved
from hpccomm.tools.flags import JSON
from hpccomm.units import grouped, ranges, wrapped

_FREE = ("SLOW_CALL", "RECORD", "DEBUG", "DUMP_DIR", "MPIEXEC", "VENV", "PYTHON")
"""Variables of hpccomm that may differ between ranks, without ``HPCCOMM_``."""

Verdicts = list[VariableVerdict]


FLAGS = (JSON, *flags.table(__package__)["env"])


def run(args: argparse.Namespace) -> int:
    """Judge the variables, compare the ranks, and report; return the exit status. Every rank of the job runs it."""
    status, document = 0, dict[str, Any]()
    if args.list is not None:
        lines = list(_explained(args.list))
    elif args.preset:
        lines = list(variables.preset(args.preset, _facts()))
    elif args.for_model:
        lines = list(variables.for_model(args.for_model, args.ranks, _facts()))
    else:
        ranks = _gathered(_verdicts())
        entries = _joined(ranks)
        changes = list(_changes(args.against, entries)) if args.against else []
        status = int(bool(changes) or any(entry["fault"] for entry in entries))
        lines = [line for entry in entries for line in _lines(entry, len(ranks))] + changes
        document = {"ranks": len(ranks), "status": status, "variables": entries, "changes": changes}
    if output.speaks():
        lines = lines or [
            "none of the variables of NCCL, MPI and hpccomm is set; hpccomm env --list has them"
        ]
        output.write_found(document, lines, as_json=args.json and bool(document))
    return status


def _verdicts() -> Verdicts:
    """Return the verdicts on this process's variables."""
    present = variables.settings()
    surroundings = replace(variables.here(), names=cache(variables.installed))
    own = (each for each in present if each.place == ENVIRONMENT)
    verdicts = [_own(each) for each in own if each.name.startswith("HPCCOMM_")]
    return [*variables.judge_all(present, surroundings), *verdicts]


def _own(setting: VariableSetting) -> VariableVerdict:
    names = [each.name for each in settings.VARIABLES]
    if setting.name not in names:
        return variables.unknown(setting, "hpccomm", names)
    try:
        settings.read(setting.name)
    except (ConfigurationError, UsageError) as error:
        remedy = str(error).partition("; ")[2]
        return VariableVerdict(*setting, "misfit", "hpccomm cannot read it", remedy)
    return VariableVerdict(*setting)


def _table() -> dict[str, variables.KnownVariable]:
    """Return the facts about all known variables, hpccomm's among them."""
    own = {
        each.name: variables.KnownVariable(
            *("hpccomm", each.name, "text", each.kind.fits, "", each.meaning, str(each.default)),
            ranks="free" if each.name.removeprefix("HPCCOMM_") in _FREE else "equal",
        )
        for each in settings.VARIABLES
    }
    return {**variables.known(), **own}


def _gathered(own: Verdicts) -> list[Verdicts]:
    """Return the verdicts of each rank, by rank; only this rank's if MPI does not start. Collective over the job."""
    from hpccomm.backends.bootstrap.mpi import load

    place, ranks = launched(), [own]
    if place is not None and place.size > 1:
        try:
            mpi = load()
            mpi.Init()
            ranks = mpi.COMM_WORLD.allgather(own)
            mpi.Finalize()
        except HpccommError as error:
            output.warn(f"hpccomm: rank {place.rank} alone: {error}\n")
    return ranks


def _joined(ranks: Sequence[Verdicts]) -> list[dict[str, Any]]:
    """Return the verdicts of all ranks, each once with its ranks, and those on differences of ranks; faults first."""
    values = [{each.name: each.value for each in of if each.verdict != "shadowed"} for of in ranks]
    joined = {each: [*range(len(ranks))] for each in variables.differing(values, _table())}
    joined |= grouped((each, rank) for rank, of in enumerate(ranks) for each in of)
    in_order = sorted(joined.items(), key=lambda item: (not item[0].fault, item[0].name))
    return [asdict(each) | {"fault": each.fault, "ranks": ranges(of)} for each, of in in_order]


def _lines(entry: Mapping[str, Any], size: int) -> Iterator[str]:
    where = "" if entry["place"] in (ENVIRONMENT, RANKS) else f" in {entry['place']}"
    if entry["ranks"] != ranges(range(size)):
        where += f" on rank {entry['ranks']}"
    value = f"={entry['value']}" if entry["value"] else ""
    yield f"{entry['verdict']:10} {entry['name']}{value}{where}"
    for text in filter(None, (entry["words"], entry["remedy"] and f"-> {entry['remedy']}")):
        yield from wrapped(text, 11, 11)


def _changes(file: Path, current: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the differences between a saved report and this one, ordered by name."""

    def values(entries: Sequence[Mapping[str, Any]]) -> set[tuple[str, str]]:
        return {(each["name"], each["value"]) for each in entries if each["place"] != RANKS}

    reports = saved(file, "env", lambda given: values(given["variables"])), values(current)
    for name in sorted({name for name, _ in reports[0] ^ reports[1]}):
        texts = (sorted(repr(value) for each, value in of if each == name) for of in reports)
        before, now = (" or ".join(each) or "not set" for each in texts)
        yield f"changed    {name}: {before} before, {now} now"


def _explained(names: Sequence[str]) -> Iterator[str]:
    table = _table()
    for name in names or table:
        if name not in table:
            advice = did_you_mean(name, table, "give one that hpccomm env --list names")
            raise UsageError(f"{name!r} is in no table; {advice}")
        yield f"{name}: {table[name].meaning}"
        if names:
            facts = asdict(table[name]) | {"name": "", "meaning": ""}
            yield "  " + "; ".join(f"{fact}: {text}" for fact, text in facts.items() if text)


def _facts() -> dict[str, Any]:
    """Return the facts that presets use: active ports, the fastest interface, GPUs, the mode of the IOMMU."""
    from hpccomm.tools.doctor.sources import network

    facts: dict[str, Any] = {}
    # Counters are read twice without a wait between: presets do not use them.
    ports = read(network.rdma, wait=lambda: None).get("ports", ())
    for port in sorted(ports, key=lambda port: str(port["device"])):
        kind = {"InfiniBand": "infiniband", "Ethernet": "roce"}.get(port.get("link_layer"))
        if kind and port.get("state") == "ACTIVE" and port.get("rate"):
            devices = [*filter(None, facts.get(kind, "").split(",")), port["device"]]
            facts[kind] = ",".join(dict.fromkeys(devices))
            facts[f"{kind}_rate"] = max(facts.get(f"{kind}_rate", 0), port["rate"])
    links = read(network.gather, wait=lambda: None).get("devices", ())
    up = [link for link in links if link.get("state") == "up" and link.get("speed")]
    for link in sorted(up, key=lambda link: (link["speed"], link["name"])):
        facts |= {"ethernet": link["name"], "ethernet_rate": link["speed"] / 1000}
    kinds = [each.read_text() for each in Path("/sys/kernel/iommu_groups").glob("*/type")]
    facts["gpus"] = len(list(Path("/proc/driver/nvidia").glob("gpus/*")))
    facts["translating"] = sum(each.startswith("DMA") for each in kinds)
    if nccl := variables.here().nccl:
        facts |= {"nccl": nccl, "nccl_text": version_text(nccl)}
    return {name: fact for name, fact in facts.items() if fact}
