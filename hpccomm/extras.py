"""The libraries of hpccomm's extras, with the command that installs them.

Modules that need such a library raise an error with this command if it is missing.
"""

import shlex
from importlib import metadata


def install_command(extra: str) -> str:
    """Return the command that installs the libraries of an extra, such as ``pip install scipy``.

    It names the libraries and not ``hpccomm[extra]``, which pip would look for in its index. They are
    read from the metadata of the installed package. Without any, as in a checkout that is not
    installed, it installs the extra from there.

    Parameters
    ----------
    extra : str
        One of ``[options.extras_require]`` in ``setup.cfg``.
    """
    try:
        required = metadata.requires("hpccomm") or []
    except metadata.PackageNotFoundError:
        required = []
    parts = [each.partition(";") for each in required]
    libraries = [
        library.strip() for library, _, when in parts if extra in when.replace("'", '"').split('"')
    ]
    return shlex.join(["pip", "install", *(libraries or [f".[{extra}]"])])
