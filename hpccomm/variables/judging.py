"""What is wrong with variables that are set: pure."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches

from hpccomm.variables.conf import VariableSetting
from hpccomm.variables.reading import misfit, number
from hpccomm.variables.tables import KnownVariable, known, version_code

OK = "ok"
FAULTS = (
    *("unknown", "removed", "deprecated", "newer", "misread", "misfit", "prefix", "differs"),
    "overrides",
)
"""Verdicts of what should be changed. The others are ``ok``, ``foreign`` (another program's), ``caution`` (not for
production), ``shadowed`` (another place has a value that counts), ``uneven`` (differs between ranks, and may)."""

NEAR = 0.8
"""Likeness from which a known name may have been meant; difflib's 0.6 finds one for most words."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What verdicts may rest on, beside the tables.

    Attributes
    ----------
    nccl : int
        NCCL's version as its code; 0 if it is not known.
    devices : mapping
        Names of the devices that a variable of kind ``devices`` chooses from, by the variable.
    options : collection of str
        Fields of ncclConfig_t that the program sets.
    exists : callable
        Whether there is a file of a name.
    """

    nccl: int = 0
    devices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    options: Collection[str] = ()
    exists: Callable[[str], bool] = lambda path: True  # noqa: ARG005


@dataclass(frozen=True, slots=True)
class VariableVerdict:
    """What a variable that is set comes to.

    Attributes
    ----------
    name, value, place : str
        The setting. The value is empty where the name is not known: it might be a secret.
    verdict : str
        One of `FAULTS`, or a milder one.
    words, remedy : str
        What is so, and what to do; may be empty.
    """

    name: str
    value: str
    place: str
    verdict: str = OK
    words: str = ""
    remedy: str = ""

    @property
    def fault(self) -> bool:
        """Whether it should be changed."""
        return self.verdict in FAULTS


def judge(setting: VariableSetting, machine: Surroundings) -> VariableVerdict | None:
    """Return the verdict on one setting; None for a variable that is nobody's in the tables."""
    name, value, place = setting
    variable = known().get(name)
    if variable is None:
        return _unknown(setting) if name.removeprefix("export ").startswith("NCCL_") else None
    checked = (
        _life(variable, machine.nccl)
        or _value(variable, value)
        or _devices(variable, value, machine.devices.get(name, ()))
        or _path(variable, value, machine)
        or _deprecation(variable)
        or _override(variable, machine.options)
        or _caution(variable, value)
    )
    return VariableVerdict(name, value, place, *(checked or ()))


def judge_all(found: Iterable[VariableSetting], machine: Surroundings) -> list[VariableVerdict]:
    """Return the verdicts on settings, of which the first of a name counts."""
    verdicts: dict[str, VariableVerdict] = {}
    shadowed = []
    for setting in found:
        counts = verdicts.get(setting.name)
        if counts is None:
            if (verdict := judge(setting, machine)) is not None:
                verdicts[setting.name] = verdict
        elif counts.value not in (setting.value, ""):
            words = f"{counts.name}={counts.value} of {counts.place} counts"
            shadowed.append(VariableVerdict(*setting, "shadowed", words, "remove one of the two"))
    return [*verdicts.values(), *shadowed]


def differing(
    ranks: Sequence[Mapping[str, str]], equal: Collection[str] = ()
) -> list[tuple[str, str, dict[str | None, list[int]]]]:
    """Return the variables whose values differ between ranks.

    Parameters
    ----------
    ranks : sequence of mapping
        What counts on each rank, by name.
    equal : collection of str
        Names beside the tables' that must be equal.

    Returns
    -------
    list of tuple
        Name; ``differs`` where it must not, else ``uneven``; the ranks by value, None where it is not set.
    """
    found = []
    for name in sorted({name for rank in ranks for name in rank}):
        by_value: dict[str | None, list[int]] = {}
        for rank, values in enumerate(ranks):
            by_value.setdefault(values.get(name), []).append(rank)
        variable = known().get(name)
        rule = "equal" if name in equal else variable.ranks if variable else ""
        if len(by_value) > 1 and rule != "free":
            found.append((name, "differs" if rule == "equal" else "uneven", by_value))
    return found


Checked = tuple[str, str, str] | None
"""A verdict, its words and the remedy; None if a check has nothing to say."""


def _unknown(setting: VariableSetting) -> VariableVerdict:
    name = setting.name.removeprefix("export ").strip()
    if name != setting.name:
        words = "in this file white space and the word export belong to the name"
        return VariableVerdict(name, "", setting.place, "unknown", words, f"write {name}=VALUE")
    live = [each.name for each in known().values() if each.status == "live"]
    near = get_close_matches(name, live, n=1, cutoff=NEAR)
    remedy = f"did you mean {near[0]}?" if near else "remove it"
    words = "NCCL has no such variable"
    return VariableVerdict(name, "", setting.place, "unknown", words, remedy)


def _life(variable: KnownVariable, nccl: int) -> Checked:
    instead = f"use {variable.instead}" if variable.instead else ""
    if variable.status == "never":
        return "unknown", variable.meaning, instead or "remove it"
    if variable.status == "foreign":
        return "foreign", variable.meaning, instead
    if variable.status == "removed":
        last = version_code(variable.until)
        if variable.library != "NCCL":
            words = f"{variable.library} {variable.until} and later do not read it"
            return "caution", words, instead
        if not nccl or nccl > last - (not variable.until.startswith("after")):
            words = f"NCCL does not read it any more ({variable.until}): {variable.meaning}"
            return "removed", words, instead or "remove it"
    if variable.library == "NCCL" and 0 < nccl < version_code(variable.since):
        words = f"the NCCL that is installed does not know it; it came with {variable.since}"
        return "newer", words, f"install NCCL {variable.since} or later, or remove it"
    return None


def _value(variable: KnownVariable, value: str) -> Checked:
    if not value.strip():
        return OK, "empty: as if it were not set", ""
    verdict, words, right = misfit(variable, value)
    if not verdict:
        return None
    single = " " not in right and "," not in right
    return verdict, words, f"{variable.name}={right}" if single else f"give one of {right}"


def _devices(variable: KnownVariable, value: str, there: tuple[str, ...]) -> Checked:
    if variable.kind != "devices":
        return None
    excludes, body = value.startswith("^"), value.removeprefix("^")
    exact, body = body.startswith("="), body.removeprefix("=")
    sign = "^" if excludes else ""
    for entry in filter(None, body.split(",")):
        name = entry.partition(":")[0]
        if name != name.strip(" ^="):
            tidy = ",".join(each.strip(" ^=") for each in body.split(","))
            words = f"{entry!r} is taken as a name; ^ and = stand once, before the whole list"
            return "misfit", words, f"{variable.name}={sign}={tidy}"
        hits = [each for each in there if (each == name if exact else each.startswith(name))]
        right = f"{variable.name}={sign}={body}"
        if name in hits and len(hits) > 1:
            others = ", ".join(each for each in hits if each != name)
            return "prefix", f"{name} is a beginning: it also matches {others}", right
        if there and not hits and not excludes:
            words = f"no device here is called {name}{'' if exact else '...'}"
            return "misfit", words, f"there are {', '.join(there)}"
        if not there and not exact and variable.name == "NCCL_IB_HCA" and name[-1:].isdigit():
            words = f"{name} is a beginning: it also matches {name}0 to {name}9 where there are any"
            return "caution", words, right
    return None


def _path(variable: KnownVariable, value: str, machine: Surroundings) -> Checked:
    if variable.kind != "path" or machine.exists(value):
        return None
    tilde = "; NCCL does not expand ~" if value.startswith("~") else ""
    return "misfit", f"there is no such file{tilde}", "give the absolute path of a file"


def _deprecation(variable: KnownVariable) -> Checked:
    if variable.status != "deprecated":
        return None
    since = f" since {variable.until}" if variable.until else ""
    instead = f"use {variable.instead}" if variable.instead else "remove it"
    return "deprecated", f"deprecated{since}: {variable.meaning}", instead


def _override(variable: KnownVariable, options: Collection[str]) -> Checked:
    if variable.option not in options:
        return None
    words = f"it overrides {variable.option}, which the program sets itself"
    return "overrides", words, "remove it, or leave the option out"


def _caution(variable: KnownVariable, value: str) -> Checked:
    values, _, why = variable.caution.partition(": ")
    read = str(number(value)[0]) if variable.kind in ("int", "switch") else value.strip()
    if why and (values == "set" or read.upper() in values.upper().split(",")):
        return "caution", why, "not for production"
    return (OK, f"overrides {variable.option} of programs", "") if variable.option else None
