"""Environment variables of NCCL and the libraries below it: their meaning, and wrong values.

- Tables: the files beside this module, one for each library, have a line for each variable. ``presets.toml`` has
  settings for kinds of machines and jobs. `hpccomm.settings` checks ``nccl_config`` by the tables.
- Verdicts: pure functions read a value as its library does, and find its fault.
- Machine: the variables that are set in this process, and the facts that verdicts need.

All verdicts of this process are ``judge_all(settings(), here())``. `hpccomm env` prints them, the NCCL backend
logs the bad ones, and `hpccomm.results.exports` checks values by the tables.
"""

import math
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from hpccomm.errors import UsageError, did_you_mean, nearest
from hpccomm.spelling import rows
from hpccomm.units import grouped, ranges

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
"""Prefixes of variables, with the library that reads them and the command that lists them; empty without a command."""


@dataclass(frozen=True, slots=True)
class KnownVariable:
    """One variable of a library, or one field of ncclConfig_t: a line of its table.

    Attributes
    ----------
    library : str
        The library that reads the variable.
    name : str
        Name of the variable.
    kind : str
        How its text is read: ``int`` and ``switch`` (C's strtoll, base 0), ``truth`` (1, true, 0, false), ``decimal``,
        ``word`` (case does not count), ``exact`` (case counts), ``words`` (a list), ``functions`` (like NCCL_ALGO),
        ``devices`` (names or their beginnings), ``interfaces``, ``path``, ``yesno``, ``size``, ``text``.
    fits : str
        The permitted values, such as ``0 to 31, -1 auto``.
    since : str
        The first version that reads the variable.
    meaning : str
        The effect of the variable.
    default : str
        The default, in words.
    status : str
        ``live``, ``plug-in`` (a plug-in reads it), ``deprecated``, ``removed``, ``never`` (no version ever read it),
        ``foreign`` (another program reads it).
    until, instead : str
        The version that removed the variable (``after 2.4.8`` is the last version that had it), and its
        replacement.
    ranks : str
        ``equal`` if the value must be the same on all ranks, ``free`` if it may differ.
    option : str
        The field of ncclConfig_t that the variable overrides.
    caution : str
        ``VALUE,...: why not in production``; ``set`` stands for any value.
    source : str
        The source of the line: NCCL's ``guide`` or ``source``, ``ompi_info``, ...
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
    return {row["name"]: KnownVariable(library, **row) for row in rows(__name__, f"{file}.tsv")}


@cache
def known() -> Mapping[str, KnownVariable]:
    """Return all variables by their names."""
    tables = (_table(each.lower().replace(" ", ""), each) for each in LIBRARIES)
    return {name: line for table in tables for name, line in table.items()}


@cache
def config_fields() -> Mapping[str, KnownVariable]:
    """Return the fields of ncclConfig_t that a program can set, by name, in the order of the structure."""
    return _table("config", "NCCL")


def version_code(text: str) -> int:
    """Return the code of a version of NCCL: 23005 for 2.30.5; 0 for other texts."""
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
    """Return the fields of ncclConfig_t and their values, from the value of an option.

    Parameters
    ----------
    name : str
        Name of the option, for errors.
    value : object
        Value of the option.

    Raises
    ------
    UsageError
        If `value` is not a mapping, a field is not known, or the value of a field does not fit.
    """
    if not isinstance(value, Mapping):
        raise UsageError(f"{name} is {value!r}; give a mapping, such as {{'maxCTAs': 8}}")
    known = config_fields()
    for each, given in value.items():
        if each not in known:
            advice = did_you_mean(str(each), known, f"the fields are {', '.join(known)}")
            raise UsageError(f"{name} has {each!r}, which ncclConfig_t has not; {advice}")
        if each == "commName":
            raise UsageError(f"{name} has 'commName'; give new_comm(name=), which NCCL gets too")
        line = known[each]
        if isinstance(given, str):
            fits = line.kind == "text" and given != ""
        else:
            fits = line.kind != "text" and isinstance(given, int) and fitting(line.fits, given)
        if not fits:
            raise UsageError(f"{name}[{each!r}] is {given!r}; give {line.fits}")
    fields = {
        each: given if isinstance(given, str) else int(given) for each, given in value.items()
    }
    fewest, most = (int(fields.get(each, 0)) for each in ("minCTAs", "maxCTAs"))
    # NCCL refuses a minCTAs above maxCTAs, also if maxCTAs is not set (2.30 init.cc, parseCommConfig).
    if fewest > most:
        raise UsageError(f"{name}['minCTAs'] is {fewest}; give maxCTAs, of at least {fewest}")
    return fields


def newer(fields: Iterable[str], nccl: int) -> str:
    """Return in words the fields that a version of NCCL lacks, and the versions that have them; empty if none."""
    known = config_fields()
    missing = [each for each in fields if version_code(known[each].since) > nccl]
    return ", ".join(f"{each} came with NCCL {known[each].since}" for each in missing)


def members(nccl: int) -> int:
    """Return the number of fields that ncclConfig_t has in a version of NCCL."""
    return sum(version_code(each.since) <= nccl for each in config_fields().values())


PATIENCE = 100.0, 60.0
"""The recommended deadline as a multiple of the shortest time of a call, and the least deadline in seconds."""


@cache
def _presets() -> Mapping[str, Any]:
    return tomllib.loads(Path(__file__).with_name("presets.toml").read_text(encoding="utf-8"))


def preset(name: str, facts: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of a preset: for each variable its reason, the fact of the machine behind it, and its value.

    Parameters
    ----------
    name : str
        A heading of ``presets.toml``, such as ``roce``.
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
    """Yield the lines for all-reduces of `nbytes` over `ranks`: those of the network, and a deadline.

    The shortest time of a call is the time of the bytes that each rank must send, 2 (ranks - 1) / ranks of the array,
    over one link.
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


Fault = tuple[str, str, str]
"""A verdict, its reason, and the remedy, in words."""

_NUMBER = re.compile(r"[ \t-\r]*([+-]?)(0[xX][0-9a-fA-F]+|0[0-7]*|[1-9][0-9]*)")
_SIZES = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_TRUE, _FALSE = "1|t|true|y|yes|on|enabled?", "0|f|false|n|no|off|disabled?"
_FUNCTION = "(broadcast|reduce|allgather|reducescatter|allreduce)"
_PATTERNS = {
    "truth": "1|t|true|0|f|false",  # NCCL 2.30, param/parser_default.h
    "yesno": rf"\s*({_TRUE}|{_FALSE})\s*",
    "decimal": r"\s*[0-9.]+\s*",
    "size": r"\s*(auto|inf|\d+(\.\d+)?[kmgt]?i?b?)\s*",
    "word": "WORD",
    "exact": "WORD",
    "words": r"\^?WORD([,|] *WORD)*",
    "functions": rf"({_FUNCTION}:)?\^?WORD(,WORD)*(;{_FUNCTION}:\^?WORD(,WORD)*)*",
}
"""Regular expressions of the texts of each kind; WORD stands for one of the permitted words."""


def number(text: str) -> tuple[int, str]:
    """Return the number that C's ``strtoll`` with base 0 reads, and the rest of the text, which it ignores."""
    match = _NUMBER.match(text)
    if not match:
        return 0, text
    sign, digits = match.groups()
    octal = digits[0] == "0" and digits[1:].isdigit()
    value = int(digits, 8 if octal else 0)
    return -value if sign == "-" else value, text[match.end() :]


def misfit(variable: KnownVariable, text: str) -> Fault | None:
    """Return the fault of a value, ``misread`` or ``misfit``, with advice; None without a fault."""
    if variable.kind in ("int", "switch"):
        return _integer(variable, text)
    fits = variable.fits.split(",")
    word = f"({'|'.join(map(re.escape, fits))})".replace(":N", ":[1-9][0-9]*")
    pattern = _PATTERNS.get(variable.kind, "(?s:.*)").replace("WORD", word)
    if re.fullmatch(pattern, text, 0 if variable.kind == "exact" else re.IGNORECASE):
        return None
    several = variable.kind in ("words", "functions")
    pieces = re.split(r"[;:,|^]", text.removeprefix("^")) if several else [text]
    known = f"(?i) *({word}|{_FUNCTION})"
    wrong = next((each for each in pieces if not re.fullmatch(known, each)), text)
    words = f"{variable.library} does not know {wrong!r}"
    if variable.kind == "functions":
        words += ": an error since 2.24, and ignored before"
    elif variable.library == "NCCL":
        words += f": it goes by the default ({variable.default})"
    alike = next((each for each in fits if each.lower() == text.lower()), variable.fits)
    return "misfit", words, _advice(variable, alike)


def _integer(variable: KnownVariable, text: str) -> Fault | None:
    value, rest = number(text)
    rest, plain = rest.strip(), text.strip().lower()
    false = re.fullmatch(_FALSE, plain)
    reads = f"{variable.library} reads {value}"
    # A word for off reads as 0, which is off too.
    if rest and not (false and variable.kind == "switch"):
        unit = re.fullmatch(r"([kmg])(i?b)?", rest.lower())
        if false or re.fullmatch(_TRUE, plain):
            right = "0" if false else "1"
        elif unit and "bytes" in variable.fits:
            right = str(value * _SIZES[unit[1]])
        else:
            bare = plain.strip("'\"")
            right = bare if bare != plain else str(value) if value else variable.fits
        off = " (off)" if variable.kind == "switch" and not value else ""
        words = f"{reads}{off}: it ignores {rest!r}"
        return "misread", words, _advice(variable, right)
    if re.fullmatch(r"[+-]?0[0-7]+", plain):
        words = f"{reads}: a leading 0 makes it octal"
        return "misread", words, _advice(variable, str(int(plain)))
    if fitting(variable.fits, value):
        return None
    return "misfit", f"{reads}, which is out of range", _advice(variable, variable.fits)


def _advice(variable: KnownVariable, right: str) -> str:
    single = not re.search("[ ,]", right)
    return f"{variable.name}={right}" if single else f"give one of {right}"


ENVIRONMENT, RANKS = "environment", "ranks"
"""Places of a value, beside files. `RANKS` is the place of a verdict that compares ranks."""

OK = "ok"
FAULTS = (
    *("unknown", "removed", "deprecated", "newer", "misread", "misfit", "prefix", "differs"),
    "overrides",
)
"""Verdicts on variables that should be changed. The others are ``ok``, ``foreign`` (another program reads it),
``caution`` (not for production), ``shadowed`` (the value of another place takes effect), ``uneven`` (differs between
ranks, and may)."""


class VariableSetting(NamedTuple):
    """A variable that is set, its value, and the place where it is set: ``environment``, or a file."""

    name: str
    value: str
    place: str = ENVIRONMENT


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Facts of the machine that verdicts use beside the tables.

    Attributes
    ----------
    nccl : int
        The code of NCCL's version; 0 if it is not known.
    devices : mapping
        For each variable of kind ``devices``, the names of the devices that it chooses from.
    options : collection of str
        The fields of ncclConfig_t that the program sets.
    exists : callable
        ``exists(path)`` returns whether a file exists.
    names : callable
        ``names(prefix)`` returns all variables with a prefix that the installed library has; none if it cannot tell.
    """

    nccl: int = 0
    devices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    options: Collection[str] = ()
    exists: Callable[[str], bool] = lambda path: True  # noqa: ARG005
    names: Callable[[str], Collection[str]] = lambda prefix: ()  # noqa: ARG005


@dataclass(frozen=True, slots=True)
class VariableVerdict:
    """The verdict on a variable that is set.

    Attributes
    ----------
    name, value, place : str
        The setting. The value of an unknown variable is left out, since it might be a secret.
    verdict : str
        One of `FAULTS`, or a milder verdict.
    words, remedy : str
        The fault, and the remedy, in words; may be empty.
    """

    name: str
    value: str
    place: str
    verdict: str = OK
    words: str = ""
    remedy: str = ""

    @property
    def fault(self) -> bool:
        """Whether the variable should be changed."""
        return self.verdict in FAULTS


def judge(setting: VariableSetting, machine: Surroundings) -> VariableVerdict | None:
    """Return the verdict on one setting; None for a variable that is in no table and does not look like NCCL's."""
    variable, name = known().get(setting.name), setting.name.removeprefix("export ").strip()
    if variable is not None:
        return VariableVerdict(*setting, *next(_findings(variable, setting.value, machine), ()))
    if not name.startswith("NCCL_"):
        return _misspelt(setting, machine)
    if name == setting.name:
        return unknown(
            setting, "NCCL", [each.name for each in known().values() if each.status == "live"]
        )
    words = "in this file white space and the word export belong to the name"
    return VariableVerdict(name, "", setting.place, "unknown", words, f"write {name}=VALUE")


def _misspelt(setting: VariableSetting, machine: Surroundings) -> VariableVerdict | None:
    """Return the verdict on a name that the installed library does not list or that resembles a known one, or None."""
    name = re.sub("^MPICH_", "MPIR_CVAR_", setting.name)  # MPICH reads both
    prefix = next((each for each in PREFIXES if name.startswith(each)), None)
    if prefix is None:
        return None
    there = machine.names(prefix)
    # Open MPI passes variables on that begin with the name of a part of PRRTE.
    if name.split("_")[:3] not in [each.split("_")[:3] for each in there]:
        there = [each for each in known() if each.startswith(prefix) and _slip(name, each)]
    return unknown(setting, PREFIXES[prefix][0], there) if there and name not in there else None


def _slip(given: str, name: str) -> bool:
    """Return whether `given` is `name` with a slip: letters or words changed places, or one letter is missing or extra.

    Other first letters of words are no slip: there are MPIR_CVAR_ALLREDUCE_... and MPIR_CVAR_IALLREDUCE_....
    """
    short, long = sorted((given.lower(), name.lower()), key=len)
    if sorted(short.replace("_", "")) == sorted(long.replace("_", "")):
        return True
    begins = [[word[:1] for word in each.split("_")] for each in (short, long)]
    return begins[0] == begins[1] and short in {
        long[:at] + long[at + 1 :] for at in range(len(long))
    }


def unknown(setting: VariableSetting, program: str, names: Iterable[str]) -> VariableVerdict:
    """Return the verdict on a variable that its program does not know; the verdict names the nearest known variable."""
    near = nearest(setting.name, names)
    remedy = f"did you mean {near}?" if near else "remove it"
    words = f"{program} has no such variable"
    return VariableVerdict(setting.name, "", setting.place, "unknown", words, remedy)


def judge_all(settings: Iterable[VariableSetting], machine: Surroundings) -> list[VariableVerdict]:
    """Return the verdicts on settings. Of several settings with the same name, the first takes effect."""
    verdicts: dict[str, VariableVerdict] = {}
    shadowed = []
    for setting in settings:
        counts = verdicts.get(setting.name)
        if counts is None:
            if (verdict := judge(setting, machine)) is not None:
                verdicts[setting.name] = verdict
        elif counts.value not in (setting.value, ""):
            words = f"{counts.name}={counts.value} of {counts.place} counts"
            shadowed.append(VariableVerdict(*setting, "shadowed", words, "remove one of the two"))
    return [*verdicts.values(), *shadowed]


def differing(
    ranks: Sequence[Mapping[str, str]], table: Mapping[str, KnownVariable]
) -> Iterator[VariableVerdict]:
    """Yield a verdict on each variable whose values differ between ranks, except on those that may differ freely.

    Parameters
    ----------
    ranks : sequence of mapping
        The settings that take effect on each rank, by name.
    table : mapping
        The known variables, by name. The verdict is ``differs`` on variables that must be equal on all ranks, and
        ``uneven`` on the others.
    """
    for name in sorted({name for rank in ranks for name in rank}):
        # The value of an unknown name is not kept.
        found = (values.get(name, "not set") or "set" for values in ranks)
        by_value = grouped((value, rank) for rank, value in enumerate(found))
        rule = table[name].ranks if name in table else ""
        if len(by_value) > 1 and rule != "free":
            words = ", ".join(f"{value} on rank {ranges(of)}" for value, of in by_value.items())
            remedy = "set it in one place for all ranks (mpiexec -x NAME, srun --export)"
            if rule == "equal":
                words = f"must be equal on all ranks: {words}"
            verdict = "differs" if rule == "equal" else "uneven"
            yield VariableVerdict(name, "", RANKS, verdict, words, remedy)


def _findings(variable: KnownVariable, value: str, machine: Surroundings) -> Iterator[Fault]:
    """Yield the remarks on a setting, the most important first."""
    library, nccl, until = variable.library, machine.nccl, version_code(variable.until)
    instead = f"use {variable.instead}" if variable.instead else "remove it"
    if variable.status in ("never", "foreign"):
        verdict = "unknown" if variable.status == "never" else "foreign"
        yield verdict, variable.meaning, instead if variable.instead or verdict == "unknown" else ""
    if variable.status == "removed" and library != "NCCL":
        yield "caution", f"{library} {variable.until} and later do not read it", instead
    elif variable.status == "removed" and (
        not nccl or nccl > until - (not variable.until.startswith("after"))
    ):
        words = f"NCCL does not read it any more ({variable.until}): {variable.meaning}"
        yield "removed", words, instead
    if library == "NCCL" and 0 < nccl < version_code(variable.since):
        words = f"the NCCL that is installed does not know it; it came with {variable.since}"
        yield "newer", words, f"install NCCL {variable.since} or later, or remove it"
    values, _, why = variable.caution.partition(": ")
    read = str(number(value)[0]) if variable.kind in ("int", "switch") else value.strip()
    caution = why and (values == "set" or read.upper() in values.upper().split(","))
    if not value and not caution:
        yield OK, "empty: as if it were not set" if library == "NCCL" else "empty", ""
    if wrong := misfit(variable, value):
        yield wrong
    if variable.kind == "devices":
        yield from _devices(variable.name, value, machine.devices.get(variable.name, ()))
    if variable.kind == "interfaces" and (there := machine.devices.get("interfaces")):
        for name in value.lstrip("^").split(","):
            if not re.match(r"all$|.*/|[\d.]+$", name) and name.partition(":")[0] not in there:
                words = f"no interface or adapter here is called {name}"
                yield "misfit", words, f"there are {', '.join(there)}"
    if variable.kind == "path" and not machine.exists(value):
        tilde = "; NCCL does not expand ~" if value.startswith("~") else ""
        yield "misfit", f"the file does not exist{tilde}", "give the absolute path of a file"
    if variable.status == "deprecated" and not 0 < nccl < until:
        since = f" since {variable.until}" if until else ""
        yield "deprecated", f"deprecated{since}: {variable.meaning}", instead
    if variable.option in machine.options:
        words = f"it overrides {variable.option}, which the program sets itself"
        yield "overrides", words, "remove it, or leave the option out"
    if caution:
        yield "caution", why, "not for production"
    if variable.option:
        yield OK, f"overrides {variable.option} of programs", ""


def _devices(variable: str, value: str, there: tuple[str, ...]) -> Iterator[Fault]:
    parts = re.fullmatch(r"(\^?)(=?)(.*)", value, re.DOTALL)
    sign, equals, body = parts.groups() if parts else ("", "", value)
    right = f"{variable}={sign}={body}"
    for entry in filter(None, body.split(",")):
        name = entry.partition(":")[0]
        hits = [each for each in there if (each == name if equals else each.startswith(name))]
        if name != name.strip(" ^="):
            tidy = ",".join(each.strip(" ^=") for each in body.split(","))
            words = f"{entry!r} is taken as a name; ^ and = stand once, before the whole list"
            yield "misfit", words, f"{variable}={sign}={tidy}"
        if name in hits and len(hits) > 1:
            others = ", ".join(each for each in hits if each != name)
            yield "prefix", f"{name} is a beginning: it also matches {others}", right
        if there and not hits and not sign:
            words = f"no device here is called {name}{'' if equals else '...'}"
            yield "misfit", words, f"there are {', '.join(there)}"
        if not there and not equals and variable == "NCCL_IB_HCA" and name[-1:].isdigit():
            words = f"{name} is a beginning: it also matches {name}0 to {name}9 where there are any"
            yield "caution", words, right


SITE_FILE = Path("/etc/nccl.conf")

_FOLDERS = {"NCCL_IB_HCA": "sys/class/infiniband", "NCCL_SOCKET_IFNAME": "sys/class/net"}
_WHEELS = ("nvidia-nccl-cu13", "nvidia-nccl-cu12")


def settings(
    environ: Mapping[str, str] = os.environ, site: Path = SITE_FILE
) -> list[VariableSetting]:
    """Return all settings in the order of their effect: the environment first, then NCCL's files in their order.

    As in NCCL 2.30 (misc/param.cc: initEnvFunc, setEnvFile), white space in a file belongs to names and values, and
    lines without ``=`` are ignored.
    """
    set_here = [VariableSetting(name, value) for name, value in sorted(environ.items())]
    own = environ.get("NCCL_CONF_FILE") or f"{environ.get('HOME', '')}/.nccl.conf"
    for file in (Path(own), site):
        with suppress(OSError):
            for line in os.fsdecode(file.read_bytes()).split("\n"):
                name, equals, value = line.removesuffix("\r").partition("=")
                if equals:  # a "name" in a comment begins with #, and matches no variable
                    set_here.append(VariableSetting(name, value, str(file)))
    return set_here


def here(
    nccl: int | None = None, options: Collection[str] = (), root: Path = Path("/")
) -> Surroundings:
    """Return the facts of this machine. Local; loads no library.

    Parameters
    ----------
    nccl : int, optional
        Code of NCCL's version; by default that of the installed wheel, if there is one.
    options : collection of str
        Fields of ncclConfig_t that the program sets.
    root : Path
        Root of the file system.
    """
    devices = {
        variable: tuple(sorted(each.name for each in (root / folder).glob("*") if each.is_dir()))
        for variable, folder in _FOLDERS.items()
    }
    devices["interfaces"] = tuple(sorted({name for names in devices.values() for name in names}))
    if nccl is None:
        wheels = (each for name in _WHEELS for each in metadata.distributions(name=name))
        nccl = version_code(next((each.version for each in wheels), ""))
    return Surroundings(nccl, devices, options, os.path.exists)


def installed(prefix: str) -> frozenset[str]:
    """Return the variables with a prefix that the library's own program lists; none if the program is missing.

    It runs that program, and blocks for at most 10 s.
    """
    if not PREFIXES[prefix][1]:
        return frozenset()
    program, *words = PREFIXES[prefix][1].split()
    # The programs of an MPI library from a wheel lie beside Python.
    places = str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)
    program = shutil.which(program, path=os.pathsep.join(places)) or program
    # With its own variables set, the program might leave variables out.
    kept = {name: value for name, value in os.environ.items() if not name.startswith(prefix)}
    try:
        done = subprocess.run(
            [program, *words], capture_output=True, text=True, env=kept, timeout=10
        )
    except (OSError, subprocess.TimeoutExpired, UnicodeError):
        return frozenset()
    names = re.findall(r"(?m)(?::param:|: \"|^\s*)(\w+)(?::type:|\" \(|=)", done.stdout)
    return frozenset(prefix + name.removeprefix(prefix) for name in names)
