"""The user, host, processor and processes of a run, as results files name them.

All programs that store a run ask it.
"""

import getpass
import os
import socket

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
