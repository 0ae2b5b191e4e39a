"""The user, host and versions of a run, as results files name them.

All programs that store a run ask it.
"""

import getpass
import os
import platform
import socket

import numpy as np

import hpccomm
from hpccomm.files.regular import as_utf8


def host() -> str:
    """Return this node's name, without its domain."""
    return as_utf8(socket.gethostname()).split(".")[0]


def user() -> str:
    """Return who runs this process."""
    try:
        return as_utf8(getpass.getuser())
    except (KeyError, OSError):  # a user id without a name, as in containers
        return str(os.getuid())


def versions() -> dict[str, str]:
    """Return the versions of the libraries that every program needs."""
    own = hpccomm.__version__
    return {"hpccomm": own, "python": platform.python_version(), "numpy": np.__version__}
