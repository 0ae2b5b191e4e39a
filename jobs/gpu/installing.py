"""Installs what is missing beside the packages at hand, in an environment of this script's own."""

import os
import site
import sys
import venv
from collections.abc import Sequence
from pathlib import Path

from preflight import Lack
from running import CHECKOUT, GivesUp, captured, limited, say

INSTALL_SECONDS = 900.0
ASK_SECONDS = 8.0
"""Most that an index is waited for: pip's own patience is minutes."""
PIP = ("-m", "pip", "--quiet", "--disable-pip-version-check")
FOLDER = Path(os.environ.get("HPCCOMM_VENV") or CHECKOUT / ".venv-gpu").absolute()
"""The environment that missing packages go into."""


def interpreter() -> str:
    """Return the Python of that environment, if an earlier run made it over this one; else this one."""
    mark, python = FOLDER / "base", FOLDER / "bin/python"
    made = mark.exists() and mark.read_text("utf-8") == sys.executable and python.exists()
    return str(python) if made else sys.executable


def hindrance() -> str:
    """Return why pip can install nothing here, or ''. Asks the index for a small package."""
    if os.environ.get("PIP_NO_INDEX"):
        links = os.environ.get("PIP_FIND_LINKS")
        return "" if links else "PIP_NO_INDEX is set, and PIP_FIND_LINKS names no folder of wheels"
    words = [sys.executable, *PIP, "download", "--no-deps", "--retries", "0", "--timeout", "4"]
    ask = 'cd "$(mktemp -d)" && "$@" && echo reached; rm -rf "$PWD"'
    said = captured(["sh", "-c", ask, "sh", *words, "tqdm"], ASK_SECONDS, os.environ)
    reached = "reached" in said.split() or "No module named pip" in said
    return "" if reached else f"pip reaches no index within {ASK_SECONDS:g} s"


def own_environment() -> str:
    """Make the environment that missing packages go into; return its Python.

    It sees what this Python sees, its pip too. What is installed goes before that.
    """
    say(f"== making {FOLDER} over {sys.executable}")
    python = str(FOLDER / "bin/python")
    # A virtual environment sees the system's packages, but not those of another virtual environment
    # that it is made with. Prefixes are where CuPy looks for NVIDIA's libraries.
    lines = site.getsitepackages()
    if sys.prefix != sys.base_prefix:
        lines += [f"import site; site.PREFIXES.append({sys.prefix!r})"]
    try:
        # Without pip: systems that leave out ensurepip cannot make one with it.
        venv.create(FOLDER, system_site_packages=True, clear=True, symlinks=True)
        own = FOLDER / f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
        (own / "of_the_base.pth").write_text("\n".join(lines) + "\n", encoding="utf-8")
        (FOLDER / "base").write_text(sys.executable, encoding="utf-8")
    except OSError as error:
        raise GivesUp(f"{error}\n  Set HPCCOMM_VENV to a folder that can be written to.") from None
    if captured([python, "-c", "import pip; print(1)"], 20, os.environ) != "1":
        limited([python, "-m", "ensurepip"], 120, os.environ)
    return python


def install(python: str, lacks: Sequence[Lack]) -> str:
    """Install what is missing, for a Python; return the one that has it: it may be another."""
    if python == sys.executable:
        python = own_environment()
    names = [lack.requirement for lack in lacks]
    say(f"== installing {' '.join(names)}: {sum(lack.megabytes for lack in lacks)} MB")
    words = [python, *PIP, "install", "--retries", "1", "--timeout", "15"]
    if limited([*words, *names], INSTALL_SECONDS, os.environ):
        say("   pip could not install these together (see above)")
        # One that is not there keeps no other out: of a folder of wheels that takes no time.
        for name in names if os.environ.get("PIP_NO_INDEX") else ():
            limited([*words, name], INSTALL_SECONDS, os.environ)
    return python
