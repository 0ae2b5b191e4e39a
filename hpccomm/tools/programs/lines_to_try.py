"""Lines of code that advice on a recorded program has one try: in mpi4py, and the same in hpccomm."""

import re

from hpccomm.results.recording import CallSignature
from hpccomm.spelling import ours

ARGUMENTS = {
    **dict.fromkeys(("Allreduce", "Alltoall"), "x, y"),
    **dict.fromkeys(("Gather", "Scatter", "Reduce"), "x, y, root=root"),
    **dict.fromkeys(("Send", "Isend"), "x, dest=dest"),
    **dict.fromkeys(("Recv", "Irecv"), "x, source=source"),
    "Allgather": "x, y",
    "Bcast": "x, root=root",
}
"""Of mpi4py's methods for arrays."""


def name_of(one: CallSignature) -> str:
    """Return the name of a call, in the words of the program."""
    return str(one.values.get("mpi", one.operation))


def both(name: str, before: str = "", after: str = "", code: str = "") -> str:
    """Return a line that calls mpi4py's method of a name, and the same in hpccomm."""
    found = re.search(r"is written (.*?) here", ours(name))
    code = code or (found[1] if found else "none")
    return f"{before}comm.{name}({ARGUMENTS.get(name, 'x, ...')}){after}; in hpccomm: {code}"


def begun(one: CallSignature, what: str, code: str) -> str:
    """Return the line for a call of mpi4py's that others are computed beside, and the same in hpccomm."""
    if "mpi" not in one.values:
        return code
    return both(f"I{name_of(one).lower()}", "request = ", f"; {what}; request.Wait()", code)


def bare(one: CallSignature) -> str:
    """Return hpccomm's name of the call of arrays that does what mpi4py's does; empty for calls of hpccomm."""
    return one.operation.removesuffix("_object") if "mpi" in one.values else ""


def merged(one: CallSignature) -> str:
    """Return the line that makes one call of several."""
    name, operation = (
        re.sub("^(i?)recv", r"\1send", each, flags=re.IGNORECASE)
        for each in (name_of(one), one.operation)
    )
    several = "list_of_values" if operation.endswith("_object") else "np.concatenate(arrays)"
    line = f"comm.{operation}({several})"
    if "mpi" in one.values:
        line = f"comm.{name}({several}, ...); in hpccomm: {line}"
    return f"{line}, if no result is needed before the last of these calls"
