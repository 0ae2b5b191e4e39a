"""The two variants of ``--interleave``: backends, algorithms or environments.

`sweep` opens and measures them.
"""

import os
import re
from argparse import ArgumentTypeError
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from hpccomm import backends
from hpccomm.dispatch import policy
from hpccomm.errors import UsageError, did_you_mean
from hpccomm.files.regular import as_utf8
from hpccomm.results.schema import Timing, columns
from hpccomm.settings import VARIABLES

_LONGEST = next(int(each.kind[1:]) for each in columns(Timing) if each.name == "variant")

_SETTINGS = tuple(each.name for each in VARIABLES)

_PER_COMMUNICATOR = re.compile(r"HPCCOMM_\w+|NCCL_ALGO|NCCL_PROTO")
"""Variables that are read when a communicator is made, and not once in each process."""


@dataclass(frozen=True, slots=True)
class Variant:
    """One of two variants that are measured in turns.

    Attributes
    ----------
    name : str
        As it was given.
    backend, algorithm : str or None
        Its values of ``--backend`` and ``--algorithm``.
    environment : mapping of str to str
        Environment variables that it sets.
    """

    name: str
    backend: str | None = None
    algorithm: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)

    def flags(self) -> list[str]:
        """Return the flags of perf that it sets, and its name."""
        flags = {"--backend": self.backend, "--algorithm": self.algorithm, "--variant": self.name}
        return [word for flag, value in flags.items() if value for word in (flag, value)]

    def same(self, other: "Variant") -> bool:
        """Whether both set the same, however they are spelled."""
        return self.algorithm == other.algorithm and self.same_communicator(other)

    def same_communicator(self, other: "Variant") -> bool:
        """Whether one communicator serves both."""
        return (self.backend, self.environment) == (other.backend, other.environment)

    def refuse_process_variables(self) -> None:
        """Raise if it sets a variable that a process reads only once, as it starts.

        Raises
        ------
        UsageError
            If it does; whole launches can differ in it.
        """
        for name in self.environment:
            if not _PER_COMMUNICATOR.fullmatch(name):
                raise UsageError(
                    f"--interleave {self.name}: a process reads {name} only once, so one launch cannot alternate "
                    "between its values; add --launches 10, which alternates whole launches"
                )

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Return a context with its environment variables."""
        before = {name: os.environ.get(name) for name in self.environment}
        os.environ.update(self.environment)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)  # what ran within may have removed it
                else:
                    os.environ[name] = value


ONLY = Variant("")
"""The single variant of a run without ``--interleave``."""


def name_of_variant(text: str) -> str:
    """Read the name of a variant, as results files hold it."""
    if not text.strip() or len(as_utf8(text).encode()) > _LONGEST:
        raise ArgumentTypeError(f"{text!r} is not a name; give one of 1 to {_LONGEST} bytes")
    return text


def variant(text: str) -> Variant:
    """Read a variant: words with blanks between them, as `Variant` has them.

    A word is ``algorithm=NAME``, ``backend=NAME``, a variable ``NAME=VALUE``, or the name of an algorithm or a
    backend alone.
    """
    words = text.split()
    if not words or len(as_utf8(text).encode()) > _LONGEST:
        raise ArgumentTypeError(f"{text!r} is not a variant; {_FITS}, in at most {_LONGEST} bytes")
    algorithms = policy.names()
    known = {"algorithm": algorithms, "backend": backends.choices()}
    settings: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals:
            kinds = [kind for kind, names in known.items() if word in names]
            name, value = (kinds[0] if kinds else "algorithm"), word
        if name in known and value not in known[name]:
            every = known[name] if equals else (*algorithms, *known["backend"])
            advice = did_you_mean(value, every, _FITS)
            raise ArgumentTypeError(f"{value!r} is not a known {name}; {advice}")
        if name not in known and not re.fullmatch(r"[A-Za-z_]\w*", name):
            raise ArgumentTypeError(f"{word!r} sets no variable; {_FITS}")
        if name.startswith("HPCCOMM_") and name not in _SETTINGS:
            advice = did_you_mean(name, _SETTINGS, f"give one of {', '.join(_SETTINGS)}")
            raise ArgumentTypeError(f"{name} is not a setting of hpccomm; {advice}")
        if name in settings:
            raise ArgumentTypeError(f"{text!r} sets {name} twice; give one value")
        settings[name] = value
    return Variant(text, settings.pop("backend", None), settings.pop("algorithm", None), settings)


_FITS = (
    "give words such as ring, algorithm=ring, backend=nccl or a variable like HPCCOMM_SEGMENT=65536, "
    "with blanks between them"
)
