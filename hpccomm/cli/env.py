"""``hpccomm env``: the variables that are set, and what is wrong with them."""

import argparse
import json
import os
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hpccomm import settings, variables
from hpccomm.backends.bootstrap.launch import launched
from hpccomm.backends.nccl.facts import version_text
from hpccomm.bench.perf import readers
from hpccomm.cli import output
from hpccomm.cli.show import path
from hpccomm.errors import ConfigurationError, HpccommError, UsageError, did_you_mean, nearest
from hpccomm.units import ranges
from hpccomm.variables import VariableVerdict, presets
from hpccomm.variables.conf import ENVIRONMENT

DESCRIPTION = """\
List the variables of NCCL, hpccomm, MPI, UCX, libfabric and CUDA that are set, in the environment and in NCCL's
files, each with a verdict and a remedy. Under mpiexec or srun those of all ranks are compared, and rank 0 reports.

It also explains variables (--list), and prints settings for a kind of machine (--preset) or of job (--for-model).
"""

EXAMPLES = """\
examples:
  hpccomm env
  mpiexec -n 8 hpccomm env --json > good.json
  mpiexec -n 8 hpccomm env --against good.json
  hpccomm env --list NCCL_BUFFSIZE UCX_TLS
  hpccomm env --preset roce
  hpccomm env --for-model 14G --ranks 64

Exit status: 0 if all is well, 1 if a variable should be changed or differs from FILE, 2 if it could not look.
"""

_FREE = (
    *("HPCCOMM_SLOW_CALL", "HPCCOMM_RECORD", "HPCCOMM_DEBUG", "HPCCOMM_DUMP_DIR"),
    *("HPCCOMM_MPIEXEC", "HPCCOMM_VENV", "HPCCOMM_PYTHON"),
)
"""Variables of hpccomm that may differ between ranks."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    add = parser.add_argument
    add("--json", action="store_true", help="print JSON for scripts")
    add("--against", type=path, metavar="FILE", help="compare with what --json has printed before")
    add("--list", nargs="*", metavar="NAME", help="explain these variables, or list all")
    add(
        "--preset",
        type=readers.one_of(presets.PRESETS, "preset"),
        metavar=f"{{{','.join(presets.PRESETS)}}}",
        help="print settings for this kind of machine, each with its reason",
    )
    add("--for-model", type=readers.segment, metavar="BYTES", help="print settings for all-reduces")
    add(
        "--ranks", type=readers.integer(2), default="2", metavar="N", help="their ranks (default 2)"
    )


def run(args: argparse.Namespace) -> int:
    """Look, compare and report; return the exit status. Every rank of the job runs it."""
    status = 0
    if args.list is not None:
        lines = list(_explained(args.list))
    elif args.preset:
        lines = list(presets.preset(args.preset, _facts()))
    elif args.for_model:
        lines = list(presets.for_model(args.for_model, args.ranks, _facts()))
    else:
        saved = _saved(args.against) if args.against else None
        ranks = _gathered([asdict(each) for each in _verdicts()])
        found = _joined(ranks)
        changes = [] if saved is None else list(_changes(saved, found))
        status = int(bool(changes) or any(entry["fault"] for entry in found))
        lines = [line for entry in found for line in _lines(entry, len(ranks))] + changes
        if args.json:
            document = {"ranks": len(ranks), "status": status, "variables": found}
            lines = [json.dumps(document | {"changes": changes}, indent=1)]
    if output.speaks():
        output.write("\n".join(lines or ["no variable of the tables is set"]) + "\n")
    return status


def _verdicts() -> list[VariableVerdict]:
    """Return the verdicts on what is set in this process."""
    found = variables.judge_all(variables.settings(), variables.here())
    names = [each.name for each in settings.VARIABLES]
    for name in sorted(each for each in os.environ if each.startswith("HPCCOMM_")):
        verdict, words, remedy = "ok", "", ""
        if name not in names:
            near = nearest(name, names)
            verdict, words = "unknown", "hpccomm has no such variable"
            remedy = f"did you mean {near}?" if near else "remove it"
        else:
            try:
                settings.read(name)
            except (ConfigurationError, UsageError) as error:
                verdict, words = "misfit", "hpccomm cannot read it"
                remedy = str(error).partition("; ")[2]
        value = os.environ[name] if name in names else ""
        found.append(VariableVerdict(name, value, ENVIRONMENT, verdict, words, remedy))
    return found


Verdicts = list[dict[str, str]]


def _gathered(own: Verdicts) -> list[Verdicts]:
    """Return what each rank of the job has, in their order; on all ranks. This one's where MPI does not start."""
    from hpccomm.backends.bootstrap.mpi import load

    place = launched()
    if place is None or place.size == 1:
        return [own]
    try:
        mpi = load()
    except HpccommError as error:
        output.warn(f"hpccomm: rank {place.rank} alone: {error}\n")
        return [own]
    mpi.Init()
    ranks: list[Verdicts] = mpi.COMM_WORLD.allgather(own)
    mpi.Finalize()
    return ranks


def _joined(ranks: Sequence[Verdicts]) -> list[dict[str, Any]]:
    """Return the verdicts of all ranks, equal ones once, and those on differences; faults first."""
    values = [
        {each["name"]: each["value"] for each in of if each["verdict"] != "shadowed"}
        for of in ranks
    ]
    joined: dict[VariableVerdict, list[int]] = {}
    equal = [each.name for each in settings.VARIABLES if each.name not in _FREE]
    for name, verdict, by_value in variables.differing(values, equal):
        words = "must be equal on all ranks: " if verdict == "differs" else ""
        words += ", ".join(
            f"{'not set' if value is None else value or 'empty'} on rank {ranges(of)}"
            for value, of in by_value.items()
        )
        remedy = "set it in one place for all ranks (mpiexec -x NAME, srun --export)"
        entry = VariableVerdict(name, "", "ranks", verdict, words, remedy)
        joined[entry] = list(range(len(ranks)))
    for rank, of in enumerate(ranks):
        for each in of:
            joined.setdefault(VariableVerdict(**each), []).append(rank)
    found = sorted(joined.items(), key=lambda item: (not item[0].fault, item[0].name))
    return [asdict(each) | {"fault": each.fault, "ranks": ranges(of)} for each, of in found]


def _lines(entry: Mapping[str, Any], size: int) -> Iterator[str]:
    where = "" if entry["place"] in (ENVIRONMENT, "ranks") else f" in {entry['place']}"
    if entry["ranks"] != ranges(range(size)):
        where += f" on rank {entry['ranks']}"
    value = f"={entry['value']}" if entry["value"] else ""
    yield f"{entry['verdict']:10} {entry['name']}{value}{where}"
    for text in filter(None, (entry["words"], entry["remedy"] and f"-> {entry['remedy']}")):
        yield textwrap.indent(textwrap.fill(text, 99, break_on_hyphens=False), " " * 11)


def _saved(file: Path) -> list[dict[str, Any]]:
    try:
        found: list[dict[str, Any]] = json.loads(file.read_text(encoding="utf-8"))["variables"]
        return [{"name": str(each["name"]), "value": str(each["value"])} for each in found]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise UsageError(
            f"--against {file}: {error}; give a file that hpccomm env --json has written"
        ) from error


def _changes(*reports: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield what differs between a saved report and this one, by name."""
    for name in sorted({each["name"] for report in reports for each in report}):
        values = [{each["value"] for each in of if each["name"] == name} for of in reports]
        if values[0] != values[1]:
            before, now = (" or ".join(sorted(map(repr, each))) or "not set" for each in values)
            yield f"changed    {name}: {before} before, {now} now"


def _explained(names: Sequence[str]) -> Iterator[str]:
    own = {each.name: each for each in settings.VARIABLES}
    meanings = {name: each.meaning for name, each in variables.known().items()}
    meanings |= {name: each.meaning for name, each in own.items()}
    for name in names or meanings:
        if name not in meanings:
            advice = did_you_mean(name, meanings, "give one that hpccomm env --list names")
            raise UsageError(f"{name!r} is in no table; {advice}")
        yield f"{name}: {meanings[name]}"
        if names and name in own:
            yield f"  fits: {own[name].kind.fits}; default: {own[name].default}"
        elif names:
            facts = asdict(variables.known()[name])
            del facts["name"], facts["meaning"]
            yield "  " + "; ".join(f"{key}: {text}" for key, text in facts.items() if text)


def _facts() -> dict[str, Any]:
    """Return what presets rest on: ports that are active, the fastest interface, GPUs, what the IOMMU does."""
    from hpccomm.doctor.sources import infiniband, network

    def at_once() -> None:
        """Take both readings of counters at once: presets do not need them."""

    facts: dict[str, Any] = {}
    for port in infiniband.gather(wait=at_once).get("ports", ()):
        kind = {"InfiniBand": "ib", "Ethernet": "roce"}.get(port.get("link_layer"))
        if kind and port.get("state") == "ACTIVE":
            names = {port["device"], *filter(None, facts.get(kind, "").split(","))}
            facts[kind] = ",".join(sorted(names))
            facts[f"{kind}_rate"] = max(facts.get(f"{kind}_rate", 0), port.get("rate", 0))
    links = network.gather(wait=at_once).get("devices", ())
    up = [(each.get("speed", 0), each["name"]) for each in links if each.get("state") == "up"]
    if any(speed for speed, _ in up):
        facts["nic_speed"], facts["nic"] = max(up)
        facts["nic_speed"] /= 1000
    kinds = [each.read_text() for each in Path("/sys/kernel/iommu_groups").glob("*/type")]
    nccl = variables.here().nccl
    facts["gpus"] = len(list(Path("/proc/driver/nvidia").glob("gpus/*")))
    facts["translating"] = sum(each.startswith("DMA") for each in kinds)
    facts["nccl"], facts["nccl_text"] = nccl, version_text(nccl) if nccl else 0
    return {name: fact for name, fact in facts.items() if fact}
