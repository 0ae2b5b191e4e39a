"""The fields of ncclConfig_t that a program may set, with its values and versions."""

from collections.abc import Iterable, Mapping

from hpccomm.errors import UsageError, did_you_mean
from hpccomm.variables.tables import config_fields, fitting, version_code

Config = Mapping[str, int | str]


def checked(name: str, value: object) -> Config:
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
    return {
        field: given if isinstance(given, str) else int(given) for field, given in value.items()
    }


def newer(fields: Iterable[str], nccl: int) -> str:
    """Return which fields a version of NCCL does not have, and since when NCCL has them; empty if it has all."""
    known = config_fields()
    missing = [each for each in fields if version_code(known[each].since) > nccl]
    return ", ".join(f"{each} came with NCCL {known[each].since}" for each in missing)


def members(nccl: int) -> int:
    """Return how many fields ncclConfig_t has in a version of NCCL."""
    return sum(version_code(each.since) <= nccl for each in config_fields().values())
