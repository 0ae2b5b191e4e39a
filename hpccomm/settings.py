"""Every setting, and the one place where ``HPCCOMM_*`` variables are read.

Each setting has one spelling in each place. The places are searched in this order: keyword argument,
`CommOptions`, environment variable, default.

The command line, the communicator and the backends ask it; the page of settings is drawn from it.
"""

import contextlib
import logging
import operator
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from math import isfinite
from typing import Any, get_args

import numpy as np

from hpccomm.errors import ConfigurationError, UsageError, did_you_mean

logger = logging.getLogger("hpccomm")

DEFAULT_TIMEOUT = 1800.0
"""Seconds after which a call that waits gives up."""
DEFAULT_SLOW_CALL = 60.0
"""Seconds after which a finished call is logged as slow."""
DEFAULT_SEGMENT = 512 * 1024
"""Bytes. A segment of this size stays in a core's cache while it is received, folded and sent."""

DEFAULT_ROOM = 32 << 20
"""Bytes per node. Containers often have 64 MiB of shared memory in all."""

BUSY = 0.1
"""Part of the cores that other processes may take; a node where they take more is busy.

Measured with two ranks on two cores of a virtual machine, in 331 windows of 0.4 s, beside loads of all sizes. While others
took up to 10 %, the mean of 20 all-reduces of 1 MiB was 1.25 times their median, as in the quietest windows; from 10 to 15 %
it was 1.4 times, from 30 to 40 % 2 times, from 50 to 60 % 4 times. For 8 B, one mean of 100 was above 5 medians up to 10 %,
above 27 from 10 to 15 %, and above 440 from 50 to 60 %. Then 6 % of the pairs seemed slow, which were sound, and up to 10 %
at most 2 %.
"""

ON_TIMEOUT = ("raise", "abort", "report")
"""Actions at a passed deadline."""

CHECK_FIRST, CHECK_ALL, CHECK_OFF = "first", "all", "off"
CHECKS = (CHECK_FIRST, CHECK_ALL, CHECK_OFF)
"""Which calls are agreed before data moves."""

SHARED_MEMORY = ("auto", "pages", "staging", "off")
"""How the ranks of a node reach each other's plain arrays."""


@dataclass(frozen=True, slots=True)
class CommOptions:
    """How a communicator behaves. The same on all ranks.

    Attributes
    ----------
    self_check : bool
        Whether `new_comm` runs a tiny checked all-reduce on each path.
    slow_call : float or None
        Calls that take at least this number of seconds are logged, while they wait and at their end. None takes ``HPCCOMM_SLOW_CALL``
        or 60, ``math.inf`` logs none.
    on_timeout : str or None
        What a call does whose deadline has passed: ``"raise"`` raises `CollectiveTimeout` (one that cannot
        be left ends the job), ``"abort"`` ends the job with the same words, ``"report"`` prints them once
        and waits on. None takes ``HPCCOMM_ON_TIMEOUT`` or ``"raise"``.
    algorithm : str or None
        The meaning of ``algorithm=None`` in calls that have such an algorithm. None takes
        ``HPCCOMM_ALGORITHM`` or ``"auto"``.
    segment : int or None
        Bytes that hpccomm's own algorithms move at a time, if they cut the array. None takes
        ``HPCCOMM_SEGMENT``, or the value of the table of `auto`, or 524288.
    tuning_file : str or None
        The results file of ``hpccomm tune`` whose table `auto` uses. Rank 0 reads it. None takes
        ``HPCCOMM_TUNING_FILE``; an empty name, or none, keeps the tables that come with hpccomm.
    network : str or None
        The description of the cluster on which `auto` compares hpccomm's algorithms where no table
        fits: a ready one or a TOML file, as for ``hpccomm simulate``; rank 0 reads it. None takes
        ``HPCCOMM_NETWORK``; if empty or unset, a typical cluster is assumed.
    check : str or None
        Which collective calls the ranks agree on before data moves: ``"first"`` (the first of each
        kind, and each large one), ``"all"`` or ``"off"``. None takes ``HPCCOMM_CHECK`` or ``"first"``.
    shared_memory : str or None
        How the ranks of a node reach each other's plain arrays: ``"pages"`` (the kernel copies from
        and to the peer's memory), ``"staging"`` (through a shared buffer), ``"auto"`` (the first that
        is allowed). With ``"off"`` they reach no memory, not even that of ``comm.empty``. None takes
        ``HPCCOMM_SHARED_MEMORY`` or ``"auto"``.
    shared_memory_room : int or None
        Bytes for staging on a node, for all of its ranks and communicators together. None takes ``HPCCOMM_SHARED_MEMORY_ROOM`` or 33554432.
    record : bool or None
        Whether the last calls are kept in memory, for dumps and for the errors of other ranks. None takes
        ``HPCCOMM_RECORD`` or True.
    high_priority_stream : bool
        Whether asynchronous calls on device arrays have priority over other work of the device.
    cuda_aware : bool or None
        Whether the MPI library takes device addresses. None takes ``HPCCOMM_CUDA_AWARE``, or the
        library's own statement.
    nccl_config : mapping of str to int or str
        Fields of NCCL's ``ncclConfig_t`` by their names, such as ``{"maxCTAs": 8, "trafficClass": 3}``, for the
        communicators of device arrays. NCCL's own variables override them. A field that the installed NCCL does not
        have raises `ConfigurationError`. Where device arrays do not go over NCCL, they have no effect.
    hints : mapping of str to str
        Options of the backend. An unknown key raises `UsageError`.
    """

    self_check: bool = True
    slow_call: float | None = None
    on_timeout: str | None = None
    algorithm: str | None = None
    segment: int | None = None
    tuning_file: str | None = None
    network: str | None = None
    check: str | None = None
    shared_memory: str | None = None
    shared_memory_room: int | None = None
    record: bool | None = None
    high_priority_stream: bool = False
    cuda_aware: bool | None = None
    nccl_config: Mapping[str, int | str] = field(default_factory=dict)
    hints: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if value is not None or each.default is not None:
                _CHECKS[each.name](f"options.{each.name}", value)


def check_seconds(name: str, value: object, *, zero: bool = False) -> float:
    """Return `value` as seconds.

    Raises
    ------
    UsageError
        If it is not a number above 0, or 0 where `zero` allows that (``math.inf`` is allowed).
    """
    number = value.item() if isinstance(value, np.generic) else value
    if (
        isinstance(number, bool)
        or not isinstance(number, int | float)
        or not (number > 0 or (zero and number == 0))
    ):
        least = "of at least 0" if zero else "above 0"
        raise UsageError(f"{name} is {value!r}; give seconds {least}, or math.inf for no limit")
    return float(number)


def check_int(name: str, value: object) -> int:
    """Return `value` as an int. NumPy's integers are accepted, bools are not.

    Raises
    ------
    UsageError
        If it is not an integer.
    """
    if type(value) is int:  # almost always; calls on small arrays come here
        return value
    if not isinstance(value, bool):
        with contextlib.suppress(TypeError):
            return operator.index(value)  # type: ignore[arg-type]  # tried on any object
    raise UsageError(f"{name} is {value!r}; give an integer, such as int(n) or n // m")


def check_bool(name: str, value: object, others: str = "") -> bool:
    """Return `value` as a bool.

    Raises
    ------
    UsageError
        If it is not True or False.
    """
    if not isinstance(value, bool | np.bool_):
        raise UsageError(f"{name} is {value!r}; give True or False{others}")
    return bool(value)


def check_bytes(name: str, value: object) -> int:
    """Return `value` as a number of bytes.

    Raises
    ------
    UsageError
        If it is not an integer of at least 1.
    """
    number = check_int(name, value)
    if number < 1:
        raise UsageError(f"{name} is {value!r}; give bytes, at least 1")
    return number


def check_least(name: str, value: object, least: int) -> int:
    """Return `value` as an int.

    Raises
    ------
    UsageError
        If it is not an integer of at least `least`.
    """
    number = check_int(name, value)
    if number < least:
        raise UsageError(f"{name} is {number}; give at least {least}")
    return number


def check_number(name: str, value: object, fits: Callable[[float], bool], range_: str) -> float:
    """Return `value` as a finite float.

    Parameters
    ----------
    name : str
        The setting's name.
    value : object
        What was given.
    fits : callable
        Returns whether a finite number is in the range.
    range_ : str
        The same in words, such as ``"above 0"``.

    Raises
    ------
    UsageError
        If it is not a finite number in the range.
    """
    if isinstance(value, int | float | np.integer | np.floating):
        with contextlib.suppress(OverflowError):  # of an int that no float holds
            number = float(value)
            if isfinite(number) and fits(number):
                return number
    raise UsageError(f"{name} is {value!r}; give a finite number {range_}")


def check_choice(name: str, value: object, kind: object) -> str:
    """Return `value` as a str, if it is one of the texts that the Literal `kind` names.

    Raises
    ------
    UsageError
        With the texts, and the nearest one.
    """
    known = get_args(kind)
    if value not in known:
        advice = did_you_mean(str(value), known, f"give one of {', '.join(known)}")
        raise UsageError(f"{name} is {value!r}; {advice}")
    return str(value)


def set_checked(settings: object, **values: object) -> None:
    """Set fields of a frozen dataclass, from its ``__post_init__``, to the values that were checked."""
    for name, value in values.items():
        object.__setattr__(settings, name, value)


def check_name(value: object) -> None:
    """Raise unless `value` may be a communicator's name.

    Raises
    ------
    UsageError
        If it is not None or a non-empty string.
    """
    if value is not None and (not isinstance(value, str) or not value):
        raise UsageError(f"name is {value!r}; give a string or None")


def _one_of(known: tuple[str, ...]) -> "SettingKind":
    def check(name: str, value: object) -> str:
        if value not in known:
            listed = ", ".join(map(repr, known))
            advice = f"give one of {listed}, or None"
            raise UsageError(f"{name} is {value!r}; {did_you_mean(str(value), known, advice)}")
        return str(value)

    return SettingKind(check, str, f"{', '.join(known[:-1])} or {known[-1]}")


def _check_hints(name: str, value: object) -> Mapping[str, str]:
    if not isinstance(value, Mapping):
        raise UsageError(f"{name} is {value!r}; give a mapping of str to str")
    for key, text in value.items():
        if not isinstance(key, str) or not isinstance(text, str):
            raise UsageError(f"{name}: {key!r}: {text!r} is not a pair of strings")
    return value


def _check_nccl_config(name: str, value: object) -> Mapping[str, int | str]:
    if value == {}:
        return {}
    from hpccomm.contracts.variables import (
        checked,  # its tables are read where they are needed
    )

    return checked(name, value)


def _switch(text: str) -> bool:
    known = {"1": True, "true": True, "yes": True, "on": True}
    known |= {"0": False, "false": False, "no": False, "off": False}
    return known[text.strip().lower()]


@dataclass(frozen=True, slots=True)
class SettingKind:
    """A kind of setting.

    Attributes
    ----------
    check : callable
        ``check(name, value)`` returns a value of Python as the kind's own type, or raises `UsageError`.
    parse : callable
        Turns the text of a variable into such a value; raises ``ValueError`` or ``KeyError``.
    fits : str
        What fits a variable, for its error and the documentation.
    """

    check: Callable[[str, object], object]
    parse: Callable[[str], object]
    fits: str


def _text(fits: str, remedy: str = "give a name or None") -> SettingKind:
    def check(name: str, value: object) -> str:
        if not isinstance(value, str):
            raise UsageError(f"{name} is {value!r}; {remedy}")
        return value

    return SettingKind(check, str, fits)


_FILE = "give the name of a file, or None"
_PATH = _text("a path")
_SECONDS = SettingKind(check_seconds, float, "seconds above 0, or inf")
_PART = SettingKind(check_seconds, float, "a part above 0, such as 0.1, or inf")
_BYTES = SettingKind(check_bytes, int, "bytes, at least 1")
_SWITCH = SettingKind(check_bool, _switch, "0 or 1")


@dataclass(frozen=True, slots=True)
class Variable:
    """One environment variable: its name, kind, default and meaning."""

    name: str
    kind: SettingKind
    default: object
    meaning: str


VARIABLES: tuple[Variable, ...] = (
    Variable("HPCCOMM_BACKEND", _text("a backend's name"), "auto", "backend of new_comm"),
    Variable(
        "HPCCOMM_ALGORITHM",
        _text("an algorithm's name"),
        "auto",
        "algorithm where a call names none",
    ),
    Variable("HPCCOMM_TIMEOUT", _SECONDS, DEFAULT_TIMEOUT, "deadline of calls"),
    Variable(
        "HPCCOMM_ON_TIMEOUT",
        _one_of(ON_TIMEOUT),
        "raise",
        "what a call does whose deadline has passed",
    ),
    Variable(
        "HPCCOMM_SLOW_CALL",
        _SECONDS,
        DEFAULT_SLOW_CALL,
        "a call that takes as long is logged, once while it waits and once at its end",
    ),
    Variable(
        "HPCCOMM_SEGMENT",
        _BYTES,
        None,
        "bytes that hpccomm's own algorithms move at a time, in place of auto's table",
    ),
    Variable(
        "HPCCOMM_TUNING_FILE",
        _text("a results file of hpccomm tune", _FILE),
        "",
        "the table that auto goes by",
    ),
    Variable(
        "HPCCOMM_NETWORK",
        _text("a description of a cluster, by name or file", _FILE),
        "",
        "what auto compares algorithms on where no table fits",
    ),
    Variable(
        "HPCCOMM_CHECK",
        _one_of(CHECKS),
        CHECK_FIRST,
        "collective calls that the ranks agree on before data moves",
    ),
    Variable(
        "HPCCOMM_SHARED_MEMORY",
        _one_of(SHARED_MEMORY),
        "auto",
        "how the ranks of a node reach each other's plain arrays",
    ),
    Variable(
        "HPCCOMM_SHARED_MEMORY_ROOM",
        _BYTES,
        DEFAULT_ROOM,
        "bytes on a node that its ranks may have for staging",
    ),
    Variable(
        "HPCCOMM_CUDA_AWARE",
        _SWITCH,
        None,
        "whether the MPI library takes device arrays as they are, in place of its own answer",
    ),
    Variable("HPCCOMM_RECORD", _SWITCH, True, "keep the last calls of each rank"),
    Variable(
        "HPCCOMM_DUMP_DIR",
        _text("a directory"),
        None,
        "where each rank writes its last calls when something fails; empty writes none; "
        "hpccomm-dumps by default, where ranks are processes; TMPDIR if it cannot be written to",
    ),
    Variable("HPCCOMM_RECORDING", _PATH, "", "record the program's calls to this results file"),
    Variable(
        "HPCCOMM_RECORD_TIMEOUT",
        _SECONDS,
        None,
        "deadline of the calls of a program of mpi4py, as hpccomm record --timeout sets it",
    ),
    Variable("HPCCOMM_DEBUG", _SWITCH, False, "log decisions to standard error"),
    Variable("HPCCOMM_ABORT_ON_EXCEPTION", _SWITCH, True, "an uncaught exception ends the job"),
    Variable(
        "HPCCOMM_LAUNCH_CHECK",
        _SWITCH,
        True,
        "refuse N jobs of one rank where one job of N was started, what a rank has started as a rank, and MPICH where "
        "/dev/shm is too small",
    ),
    Variable("HPCCOMM_BUSY", _PART, BUSY, "part of the cores above which others keep a node busy"),
    Variable("HPCCOMM_MPIEXEC", _PATH, None, "the site's mpiexec, for the scripts of jobs/"),
    Variable("HPCCOMM_VENV", _PATH, None, "virtual environment of the scripts of jobs/"),
    Variable("HPCCOMM_PYTHON", _PATH, None, "Python for the scripts of jobs/"),
)
"""All variables. The reading, the warnings and the documentation come from this list."""

_BY_NAME = {variable.name: variable for variable in VARIABLES}

_CHECKS: Mapping[str, Callable[[str, object], object]] = {
    "self_check": check_bool,
    "high_priority_stream": check_bool,
    "hints": _check_hints,
    "nccl_config": _check_nccl_config,
    **{each.name.removeprefix("HPCCOMM_").lower(): each.kind.check for each in VARIABLES},
}
"""Checks an option and returns it as its own type. None is accepted where it is the default."""


def read(name: str) -> object:
    """Return the value of the variable `name`, or its default.

    Raises
    ------
    ConfigurationError
        If its text does not fit.
    """
    variable = _BY_NAME[name]
    text = os.environ.get(name)
    if text is None or (text == "" and name != "HPCCOMM_DUMP_DIR"):
        return variable.default
    try:
        return variable.kind.check(name, variable.kind.parse(text))
    except (ValueError, KeyError):
        raise ConfigurationError(f"{name} is {text!r}; give {variable.kind.fits}") from None


def busy() -> float:
    """Return the part of the cores above which other processes keep a node busy."""
    return float(str(read("HPCCOMM_BUSY")))


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a communicator, merged from keywords, options and variables."""

    backend: str
    timeout: float
    slow_call: float
    on_timeout: str
    algorithm: str
    segment: int | None
    tuning_file: str
    network: str
    check: str
    shared_memory: str
    shared_memory_room: int
    record: bool
    high_priority_stream: bool
    cuda_aware: bool | None
    self_check: bool
    nccl_config: Mapping[str, int | str]
    hints: Mapping[str, str]

    def agreed(self) -> dict[str, object]:
        """Return the settings that must be equal on all ranks, as plain data."""
        agreed = {each.name: getattr(self, each.name) for each in fields(self)}
        del agreed["slow_call"], agreed["high_priority_stream"], agreed["record"]
        for name in ("hints", "nccl_config"):
            agreed[name] = dict(sorted(getattr(self, name).items()))
        return agreed


def merge(backend: str, timeout: float | None, options: CommOptions | None) -> Settings:
    """Merge keywords, options, variables and defaults.

    Raises
    ------
    UsageError
        If a keyword or option does not fit.
    ConfigurationError
        If a variable does not fit.
    """
    if options is None:
        options = CommOptions()
    elif not isinstance(options, CommOptions):
        raise UsageError(f"options is {options!r}; give a hpccomm.CommOptions")
    if not isinstance(backend, str) or not backend:
        raise UsageError(f"backend is {backend!r}; give a backend's name, such as 'auto'")
    read("HPCCOMM_DEBUG")  # refused here, before ranks meet, if it does not fit
    chosen: dict[str, Any] = {"timeout": timeout}
    chosen |= {each.name: getattr(options, each.name) for each in fields(options)}
    chosen["algorithm"] = chosen["algorithm"] or None  # an empty name counts as unset
    for name, value in chosen.items():
        chosen[name] = (
            read(f"HPCCOMM_{name.upper()}") if value is None else _CHECKS[name](name, value)
        )
    return Settings(
        backend=backend if backend != "auto" else str(read("HPCCOMM_BACKEND")), **chosen
    )


def warn_of_unknown(environ: Mapping[str, str] | None = None) -> list[str]:
    """Log a warning for each unknown ``HPCCOMM_*`` variable, and return their names."""
    present = os.environ if environ is None else environ
    unknown = [n for n in sorted(present) if n.startswith("HPCCOMM_") and n not in _BY_NAME]
    for name in unknown:
        advice = did_you_mean(name, _BY_NAME, "its documentation lists them under Settings")
        logger.warning("%s is not a setting of hpccomm; %s", name, advice)
    return unknown


def start_logging(rank: int) -> None:
    """Log hpccomm's decisions to standard error if ``HPCCOMM_DEBUG`` asks for it."""
    if read("HPCCOMM_DEBUG") and not logger.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter(f"hpccomm[{rank}] %(levelname)s %(message)s"))
        logger.addHandler(handler)
        logger.setLevel(logging.DEBUG)
