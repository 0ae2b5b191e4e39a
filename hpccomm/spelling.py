"""What errors advise: names as hpccomm spells them, and packages to install; and the reader of tables.

``mpi4py.tsv`` is the table of mpi4py's names, and what hpccomm has for each; the documentation reads it too.
"""

import inspect
import re
import shlex
from collections.abc import Callable, Iterable, Sequence
from enum import EnumType
from functools import cache
from importlib import metadata
from typing import TYPE_CHECKING, Any

from hpccomm.errors import nearest


@cache
def rows(package: str, file: str) -> Sequence[dict[str, str]]:
    """Return the rows of a table in a package: tab-separated cells, by the names in its first line."""
    import csv  # these take longer to load than all that is here, and only errors need them
    from importlib import resources

    text = resources.files(package).joinpath(file).read_text("utf-8")
    return tuple(
        csv.DictReader(text.splitlines(), delimiter="\t", quoting=csv.QUOTE_NONE, restval="")
    )


def table() -> Sequence[dict[str, str]]:
    """Return the rows: section, mpi4py's names, hpccomm's code, and what differs, as reStructuredText."""
    return rows("hpccomm", "mpi4py.tsv")


def ours(name: str) -> str:
    """Return in words what hpccomm has for a name of mpi4py's; empty for any other name."""
    row = next((row for row in table() if name in row["mpi4py"].split()), None)
    if row is None:
        return ""
    code, differs = (
        re.sub(r":\w+:|`", "", re.sub(r":doc:`(.*?)`", r"docs\1.rst", row[column])).strip()
        for column in ("hpccomm", "differs")
    )
    call = re.fullmatch(r"comm\.(?!plan|probe|dup|shrink)(\w+)\((.*)\)", code)
    if call and name.endswith("_init"):
        code = "comm.plan(" + ", ".join(filter(None, (f'"{call[1]}"', call[2]))) + ")"
    elif call and re.match("I[a-z]", name) and "async_op" not in code:
        code = f"comm.{call[1]}(" + ", ".join(filter(None, (call[2], "async_op=True"))) + ")"
    here = "has no counterpart" if code == "none" else f"is written {code}"
    return f"{name} is mpi4py's, and {here} here" + (f". {differs}" if differs else "")


def advice(name: str, known: Iterable[str], prefix: str = "") -> str:
    """Return what to write for a name that is not there, after a semicolon; empty where that is not clear.

    Parameters
    ----------
    name : str
        That is not there.
    known : iterable of str
        Names that are.
    prefix : str
        What precedes the name in the table, such as ``"Win."``.
    """
    if name.startswith("_"):  # libraries ask any object for such names
        return ""
    near = nearest(name, [each for each in known if not each.startswith("_")])
    said = ours(prefix + name) or (near and f"did you mean {near}?")
    return f"; {said}" if said else ""


def of_argument(name: str, call: Callable[..., Any]) -> str:
    """Return what to write for an argument that a call does not take, after a semicolon; empty where it takes it."""
    takes = inspect.signature(call).parameters
    return "" if name in takes else advice(f"{name}=", [f"{each}=" for each in takes])


def respell(error: BaseException) -> None:
    """Have Python's error about an unknown argument of a method of hpccomm's say what to write instead."""
    if not isinstance(error, TypeError):
        return
    said = re.match(
        r"(?:(\w+)\.)?(\w+)\(\) got an unexpected keyword argument '(\w+)'$", str(error)
    )
    whose, method, given = said.groups() if said else (None, "", "")
    for kind in Hinting.__subclasses__() if said else ():
        if whose in (None, kind.__name__) and hasattr(kind, method):
            error.args = (f"{error}{of_argument(given, getattr(kind, method))}",)
            return


ENDS = {
    "finalize": "a communicator, a grid or a mesh ends by finalize()",
    "close": "it ends by close(); finalize() ends communicators, grids and meshes",
}
"""What ends an object, by the method that does."""

_OTHER_ENDS = (*ENDS, "remove", "end")


class Hinting:
    """Base of classes whose errors about unknown attributes say what to write instead."""

    __slots__ = ()

    _mpi4py = ""
    """What precedes its names in the table, such as ``"Win."``."""

    if not TYPE_CHECKING:  # which is to know every name

        def __getattr__(self, name: str) -> Any:
            kind = type(self)
            said = advice(name, dir(kind), self._mpi4py)
            if name in _OTHER_ENDS:
                said = next(
                    (f"; {words}" for end, words in ENDS.items() if hasattr(kind, end)), said
                )
            raise AttributeError(f"{kind.__name__!r} object has no attribute {name!r}{said}")


class HintingEnum(EnumType):
    """Class of enumerations whose errors about unknown members say what to write instead."""

    if not TYPE_CHECKING:  # which knows the members

        def __getattr__(cls, name: str) -> Any:  # in Python 3.11 for members, too
            try:
                return cls._member_map_[name]
            except KeyError:
                said = advice(name, cls._member_map_, "MPI.")
                raise AttributeError(f"{cls.__name__} has no member {name!r}{said}") from None


def install_command(extra: str) -> str:
    """Return the command that installs the libraries of an extra, such as ``pip install scipy``.

    It names the libraries and not ``hpccomm[extra]``, which pip would look for in its index. They are
    read from the metadata of the installed package. Without any, as in a checkout that is not
    installed, it installs the extra from there.

    Parameters
    ----------
    extra : str
        One of ``[project.optional-dependencies]`` in ``pyproject.toml``.
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
