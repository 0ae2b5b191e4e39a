"""Where values come from: the environment, and the files that NCCL reads."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

ENVIRONMENT = "environment"
SITE_FILE = Path("/etc/nccl.conf")


class VariableSetting(NamedTuple):
    """A variable that is set, its value, and where: ``environment``, or a file."""

    name: str
    value: str
    place: str = ENVIRONMENT


def conf_files(environ: Mapping[str, str], site: Path = SITE_FILE) -> tuple[Path, ...]:
    """Return the files that NCCL reads, the one that counts more first (NCCL 2.30, misc/param.cc: initEnvFunc)."""
    own = environ.get("NCCL_CONF_FILE")
    if not own and "HOME" in environ:
        own = f"{environ['HOME']}/.nccl.conf"
    return (Path(own), site) if own else (site,)


def conf_lines(file: Path) -> Iterator[tuple[str, str]]:
    """Yield names and values as NCCL takes them: white space belongs to them, lines without ``=`` are ignored."""
    try:
        lines = file.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return
    for line in lines:
        name, equals, value = line.partition("=")
        if equals:  # a comment's name begins with #, as nobody's does
            yield name, value


def settings(
    environ: Mapping[str, str] | None = None, site: Path = SITE_FILE
) -> list[VariableSetting]:
    """Return all that is set, the value that counts first: the environment, then NCCL's files in their order."""
    present = os.environ if environ is None else environ
    found = [VariableSetting(name, value) for name, value in sorted(present.items())]
    for file in conf_files(present, site):
        found += [VariableSetting(name, value, str(file)) for name, value in conf_lines(file)]
    return found
