"""Every setting, and the one place where ``HPCCOMM_*`` variables are read.

Each setting has one spelling in each place. The places are searched in this order: keyword argument,
`CommOptions`, environment variable, default.
"""

import contextlib
import difflib
import logging
import operator
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any

import numpy as np

from hpccomm.errors import ConfigurationError, UsageError

logger = logging.getLogger("hpccomm")

DEFAULT_TIMEOUT = 1800.0
"""Seconds after which a call that waits gives up."""
DEFAULT_SLOW_CALL = 60.0
"""Seconds after which a finished call is logged as slow."""
DEFAULT_SEGMENT = 512 * 1024
"""Bytes. A segment of this size stays in a core's cache while it is received, folded and sent."""

DEFAULT_ROOM = 32 << 20
"""Bytes per node. Containers often have 64 MiB of shared memory in all."""

SHARED_MEMORY = ("auto", "pages", "staging", "off")
"""How the ranks of a node reach each other's plain arrays."""


@dataclass(frozen=True, slots=True)
class CommOptions:
    """How a communicator behaves. The same on all ranks.

    Attributes
    ----------
    self_check : bool
        Whether to run a tiny checked all-reduce on each path when the communicator is made.
    slow_call : float or None
        Calls that take at least so many seconds are logged. None takes ``HPCCOMM_SLOW_CALL`` or 60,
        ``math.inf`` logs none.
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
        ``HPCCOMM_NETWORK``; an empty name, or none, takes what is typical.
    shared_memory : str or None
        How the ranks of a node reach each other's plain arrays: ``"pages"`` (the kernel copies from
        and to the peer's memory), ``"staging"`` (through a shared buffer), ``"auto"`` (the first that
        is allowed). With ``"off"`` they reach no memory, not even that of ``comm.empty``. None takes
        ``HPCCOMM_SHARED_MEMORY`` or ``"auto"``.
    shared_memory_room : int or None
        Bytes for staging on a node, for all of its ranks and communicators together. None takes ``HPCCOMM_SHARED_MEMORY_ROOM`` or 33554432.
    high_priority_stream : bool
        Whether asynchronous calls on device arrays have priority over other work of the device.
    cuda_aware : bool or None
        Whether the MPI library takes device addresses. None takes ``HPCCOMM_CUDA_AWARE``, or the
        library's own statement.
    hints : mapping of str to str
        Options of the backend. An unknown key raises `UsageError`.
    """

    self_check: bool = True
    slow_call: float | None = None
    algorithm: str | None = None
    segment: int | None = None
    tuning_file: str | None = None
    network: str | None = None
    shared_memory: str | None = None
    shared_memory_room: int | None = None
    high_priority_stream: bool = False
    cuda_aware: bool | None = None
    hints: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if value is not None or each.default is not None:
                _CHECKS[each.name](f"options.{each.name}", value)


def check_seconds(name: str, value: object) -> float:
    """Return `value` as seconds.

    Raises
    ------
    UsageError
        If it is not a number above 0 (``math.inf`` is allowed).
    """
    number = value.item() if isinstance(value, np.generic) else value
    if isinstance(number, bool) or not isinstance(number, int | float) or not number > 0:
        raise UsageError(f"{name} is {value!r}; give seconds above 0, or math.inf for no limit")
    return float(number)


def check_int(name: str, value: object) -> int:
    """Return `value` as an int. NumPy's integers are accepted, bools are not.

    Raises
    ------
    UsageError
        If it is not an integer.
    """
    if not isinstance(value, bool):
        with contextlib.suppress(TypeError):
            return operator.index(value)  # type: ignore[arg-type]  # tried on any object
    raise UsageError(f"{name} is {value!r}; give an integer")


def check_bool(name: str, value: object) -> bool:
    """Return `value` as a bool.

    Raises
    ------
    UsageError
        If it is neither True nor False.
    """
    if not isinstance(value, bool | np.bool_):
        raise UsageError(f"{name} is {value!r}; give True or False")
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


def check_name(value: object) -> None:
    """Raise unless `value` may be a communicator's name.

    Raises
    ------
    UsageError
        If it is neither None nor a non-empty string.
    """
    if value is not None and (not isinstance(value, str) or not value):
        raise UsageError(f"name is {value!r}; give a string or None")


def _check_algorithm(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise UsageError(f"{name} is {value!r}; give a name or None")
    return value


def _check_file(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise UsageError(f"{name} is {value!r}; give the name of a file, or None")
    return value


def _check_shared_memory(name: str, value: object) -> str:
    if value not in SHARED_MEMORY:
        known = ", ".join(map(repr, SHARED_MEMORY))
        raise UsageError(f"{name} is {value!r}; give one of {known}, or None")
    return str(value)


def _check_hints(name: str, value: object) -> Mapping[str, str]:
    if not isinstance(value, Mapping):
        raise UsageError(f"{name} is {value!r}; give a mapping of str to str")
    for key, text in value.items():
        if not isinstance(key, str) or not isinstance(text, str):
            raise UsageError(f"{name}: {key!r}: {text!r} is not a pair of strings")
    return value


_CHECKS: Mapping[str, Callable[[str, object], object]] = {
    "timeout": check_seconds,
    "self_check": check_bool,
    "slow_call": check_seconds,
    "algorithm": _check_algorithm,
    "segment": check_bytes,
    "tuning_file": _check_file,
    "network": _check_file,
    "shared_memory": _check_shared_memory,
    "shared_memory_room": check_bytes,
    "high_priority_stream": check_bool,
    "cuda_aware": check_bool,
    "hints": _check_hints,
}
"""Checks an option and returns it as its own type. None is accepted where it is the default."""


def _seconds(text: str) -> float:
    return check_seconds("", float(text))


def _at_least_one(text: str) -> int:
    return check_bytes("", int(text))


def _one_of_shared_memory(text: str) -> str:
    return _check_shared_memory("", text)


def _switch(text: str) -> bool:
    known = {"1": True, "true": True, "yes": True, "on": True}
    known |= {"0": False, "false": False, "no": False, "off": False}
    return known[text.strip().lower()]


@dataclass(frozen=True, slots=True)
class Variable:
    """One environment variable: its name, reader, default, accepted values and meaning."""

    name: str
    read: Callable[[str], object]
    default: object
    fits: str
    meaning: str


VARIABLES: tuple[Variable, ...] = (
    Variable("HPCCOMM_BACKEND", str, "auto", "a backend's name", "backend of new_comm"),
    Variable(
        "HPCCOMM_ALGORITHM", str, "auto", "an algorithm's name", "algorithm where a call names none"
    ),
    Variable(
        "HPCCOMM_TIMEOUT", _seconds, DEFAULT_TIMEOUT, "seconds above 0, or inf", "deadline of calls"
    ),
    Variable(
        "HPCCOMM_SLOW_CALL",
        _seconds,
        DEFAULT_SLOW_CALL,
        "seconds above 0, or inf",
        "a call that took as long is logged",
    ),
    Variable(
        "HPCCOMM_SEGMENT",
        _at_least_one,
        None,
        "bytes, at least 1",
        "bytes that hpccomm's own algorithms move at a time, whatever the table of auto says",
    ),
    Variable(
        "HPCCOMM_TUNING_FILE",
        str,
        "",
        "a results file of hpccomm tune",
        "the table that auto goes by",
    ),
    Variable(
        "HPCCOMM_NETWORK",
        str,
        "",
        "a description of a cluster, by name or file",
        "what auto compares algorithms on where no table fits",
    ),
    Variable(
        "HPCCOMM_SHARED_MEMORY",
        _one_of_shared_memory,
        "auto",
        f"{', '.join(SHARED_MEMORY[:-1])} or {SHARED_MEMORY[-1]}",
        "how the ranks of a node reach each other's plain arrays",
    ),
    Variable(
        "HPCCOMM_SHARED_MEMORY_ROOM",
        _at_least_one,
        DEFAULT_ROOM,
        "bytes, at least 1",
        "bytes on a node that its ranks may have for staging",
    ),
    Variable(
        "HPCCOMM_CUDA_AWARE",
        _switch,
        None,
        "0 or 1",
        "whether the MPI library takes device arrays as they are, whatever it says itself",
    ),
    Variable("HPCCOMM_DEBUG", _switch, False, "0 or 1", "log decisions to standard error"),
    Variable(
        "HPCCOMM_ABORT_ON_EXCEPTION",
        _switch,
        True,
        "0 or 1",
        "an exception that nobody catches ends the whole job",
    ),
    Variable(
        "HPCCOMM_LAUNCH_CHECK",
        _switch,
        True,
        "0 or 1",
        "refuse N jobs of one rank where one job of N was started",
    ),
    Variable(
        "HPCCOMM_MPIEXEC", str, None, "a path", "the site's mpiexec, for the scripts of jobs/"
    ),
    Variable("HPCCOMM_VENV", str, None, "a path", "virtual environment of the scripts of jobs/"),
    Variable("HPCCOMM_PYTHON", str, None, "a path", "Python for the scripts of jobs/"),
)
"""All variables. The reading, the warnings and the documentation come from this list."""

_BY_NAME = {variable.name: variable for variable in VARIABLES}


def read(name: str) -> object:
    """Return the value of the variable `name`, or its default.

    Raises
    ------
    ConfigurationError
        If its text does not fit.
    """
    variable = _BY_NAME[name]
    text = os.environ.get(name)
    if text is None or text == "":
        return variable.default
    try:
        return variable.read(text)
    except (ValueError, KeyError):
        raise ConfigurationError(f"{name} is {text!r}; give {variable.fits}") from None


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a communicator, merged from keywords, options and variables."""

    backend: str
    timeout: float
    slow_call: float
    algorithm: str
    segment: int | None
    tuning_file: str
    network: str
    shared_memory: str
    shared_memory_room: int
    high_priority_stream: bool
    cuda_aware: bool | None
    self_check: bool
    hints: Mapping[str, str]

    def agreed(self) -> dict[str, object]:
        """Return those that must be equal on all ranks, as plain data."""
        agreed = {each.name: getattr(self, each.name) for each in fields(self)}
        del agreed["slow_call"], agreed["high_priority_stream"]
        return agreed | {"hints": dict(sorted(self.hints.items()))}


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
    chosen["algorithm"] = chosen["algorithm"] or None  # an empty name is none
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
        near = difflib.get_close_matches(name, _BY_NAME, n=1, cutoff=0.0)
        logger.warning("%s is no setting of hpccomm; did you mean %s?", name, near[0])
    return unknown


def start_logging(rank: int) -> None:
    """Log hpccomm's decisions to standard error if ``HPCCOMM_DEBUG`` asks for it."""
    if read("HPCCOMM_DEBUG") and not logger.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter(f"hpccomm[{rank}] %(levelname)s %(message)s"))
        logger.addHandler(handler)
        logger.setLevel(logging.DEBUG)
