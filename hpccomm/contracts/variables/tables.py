"""The tables of variables, and of settings for a kind of machine or job, read from the files beside this module.

`judging` uses them; `hpccomm.settings` checks ``nccl_config`` by them.
"""

import math
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from hpccomm.errors import UsageError, did_you_mean

LIBRARIES = ("NCCL", "Open MPI", "MPICH", "Intel MPI", "UCX", "libfabric", "CUDA")
"""The libraries. Their files have small letters and no space."""

PREFIXES = {
    "OMPI_MCA_": ("Open MPI", "ompi_info --all --parsable"),
    "PRTE_MCA_": ("PRRTE", "prte_info --param all:all"),
    "MPIR_CVAR_": ("MPICH", "mpivars"),
    "I_MPI_": ("Intel MPI", ""),
    "UCX_": ("UCX", "ucx_info -f"),
    "FI_": ("libfabric", ""),
}
"""How variables begin, whose those are, and what lists them; empty if nothing does by name."""


@dataclass(frozen=True, slots=True)
class KnownVariable:
    """One variable of a library, or one field of ncclConfig_t: a line of its table.

    Attributes
    ----------
    library : str
        Whose it is.
    name : str
        Its name.
    kind : str
        How its text is read: ``int`` and ``switch`` (C's strtoll, base 0), ``truth`` (1, true, 0, false), ``decimal``,
        ``word`` (case does not count), ``exact`` (it does), ``words`` (a list), ``functions`` (as NCCL_ALGO),
        ``devices`` (names or their beginnings), ``interfaces``, ``path``, ``yesno``, ``size``, ``text``.
    fits : str
        What fits, such as ``0 to 31, -1 auto``.
    since : str
        The first version that has it.
    meaning : str
        Its effect.
    default : str
        In words.
    status : str
        ``live``, ``plug-in`` (a plug-in reads it), ``deprecated``, ``removed``, ``never`` (no version ever read it),
        ``foreign`` (another program's).
    until, instead : str
        The version that ended it (``after 2.4.8`` is the last one that had it), and its
        replacement.
    ranks : str
        ``equal`` where it must be the same on all ranks, ``free`` where it may differ.
    option : str
        The field of ncclConfig_t that it overrides.
    caution : str
        ``VALUE,...: why not in production``; ``set`` stands for any value.
    source : str
        Where the line is from: NCCL's ``guide`` or ``source``, ``ompi_info``, ...
    """

    library: str
    name: str
    kind: str
    fits: str
    since: str
    meaning: str
    default: str = ""
    status: str = ""
    until: str = ""
    instead: str = ""
    ranks: str = ""
    option: str = ""
    caution: str = ""
    source: str = ""


def _table(file: str, library: str) -> dict[str, KnownVariable]:
    text = Path(__file__).with_name(f"{file}.tsv").read_text(encoding="utf-8")
    head, *rows = (line.split("\t") for line in text.splitlines())
    return {row[0]: KnownVariable(library, **dict(zip(head, row, strict=True))) for row in rows}


@cache
def known() -> Mapping[str, KnownVariable]:
    """Return all variables by their names."""
    tables = (_table(each.lower().replace(" ", ""), each) for each in LIBRARIES)
    return {name: line for table in tables for name, line in table.items()}


@cache
def config_fields() -> Mapping[str, KnownVariable]:
    """Return the fields of ncclConfig_t that a program sets, by their names, in their order."""
    return _table("config", "NCCL")


def version_code(text: str) -> int:
    """Return a version of NCCL as its code: 2.30.5 is 23005. Other texts are 0."""
    version = re.search(r"(\d+)\.(\d+)(?:\.(\d+))?", text)
    if not version or "before" in text:
        return 0
    return int(version[1]) * 10000 + int(version[2]) * 100 + int(version[3] or 0)


def fitting(fits: str, number: float) -> bool:
    """Return whether a number is in a range in words, such as ``0 to 31, -1 auto`` or ``bytes, -1 auto``."""
    for part in fits.split(","):
        codes = re.match(r" *(-?(?:0x)?\d[\dA-Fa-f]*)\b(?: to (\w+)| (or more))?", part)
        if codes:
            first, last, more = codes.groups()
            most = math.inf if more else int(last or first, 0)
            inside = int(first, 0) <= number <= most
        else:  # a unit, or "any number"
            inside = number >= 0 or part.startswith("any")
        if inside:
            return True
    return False


def checked(name: str, value: object) -> Mapping[str, int | str]:
    """Return fields and values, for an option.

    Parameters
    ----------
    name : str
        Of the option, for errors.
    value : object
        What was given.

    Raises
    ------
    UsageError
        If it is not a mapping, or a field is not known, or its value does not fit.
    """
    if not isinstance(value, Mapping):
        raise UsageError(f"{name} is {value!r}; give a mapping, such as {{'maxCTAs': 8}}")
    known = config_fields()
    for field, given in value.items():
        if field not in known:
            advice = did_you_mean(str(field), known, f"the fields are {', '.join(known)}")
            raise UsageError(f"{name} has {field!r}, which ncclConfig_t has not; {advice}")
        if field == "commName":
            raise UsageError(f"{name} has 'commName'; give new_comm(name=), which NCCL gets too")
        line = known[field]
        text = line.kind == "text" and isinstance(given, str) and given
        if not text and not (
            isinstance(given, int) and line.kind != "text" and fitting(line.fits, given)
        ):
            raise UsageError(f"{name}[{field!r}] is {given!r}; give {line.fits}")
    fields = {
        field: given if isinstance(given, str) else int(given) for field, given in value.items()
    }
    fewest, most = (int(fields.get(each, 0)) for each in ("minCTAs", "maxCTAs"))
    if (
        fewest > most
    ):  # which NCCL refuses, also where there is no maxCTAs (2.30 init.cc, parseCommConfig)
        raise UsageError(f"{name}['minCTAs'] is {fewest}; give maxCTAs, of at least {fewest}")
    return fields


def newer(fields: Iterable[str], nccl: int) -> str:
    """Return which fields a version of NCCL does not have, and since when NCCL has them; empty if it has all."""
    known = config_fields()
    missing = [each for each in fields if version_code(known[each].since) > nccl]
    return ", ".join(f"{each} came with NCCL {known[each].since}" for each in missing)


def members(nccl: int) -> int:
    """Return how many fields ncclConfig_t has in a version of NCCL."""
    return sum(version_code(each.since) <= nccl for each in config_fields().values())


PRESETS = ("infiniband", "roce", "ethernet", "nvlink", "pcie", "debug")

PATIENCE = 100.0, 60.0
"""Deadline as a multiple of the shortest time of a call, and its least value in seconds."""


@cache
def _presets() -> Mapping[str, Any]:
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
    for each in _presets()[name]:
        least = each.get("at_least", {})
        if any(facts.get(fact, number) < number for fact, number in least.items()):
            continue
        yield f"# {each['name']}: {each['reason']}"
        try:
            value, fact = each["value"].format_map(facts), each["fact"].format_map(facts)
        except KeyError as missing:
            yield f"#   not set: {_presets()['missing'][missing.args[0]]}"
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
