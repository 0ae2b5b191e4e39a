"""What is said when a `Work` is dropped that nobody asked, or a communicator that nobody has ended.

Nothing here is collective or blocks: they are collected in any thread, at any time.
"""

import sys
import warnings

from hpccomm.runtime.recorder import (
    BEGIN,
    ERROR,
    LABEL,
    SITE,
    CallRecord,
    Site,
    described,
    line_of,
    program_site,
)

_warned: dict[str | tuple[str, type[Warning], int], int] = {}
"""What was said, as the filters of `warnings` have it: by default once for each place in the program."""


def dropped(entry: CallRecord) -> None:
    """Warn that the `Work` of a call is collected that was never waited for or asked.

    It is a `ResourceWarning`, which Python shows with ``-X dev`` or ``-W default``.
    """
    if sys.is_finalizing():
        return
    site = program_site(entry[SITE], entry[BEGIN])
    where = described(site)
    failed = f"; the call has failed: {entry[ERROR]}" if entry[ERROR] else ""
    message = (
        f"the Work of an asynchronous {entry[LABEL].name}{f' at {where}' if where else ''} was dropped, and "
        f"nobody waited for it: whether its result was there is not known{failed}; keep it and call wait()"
    )
    _warn(message, site)


def dropped_communicator(name: str, site: Site) -> None:
    """Warn that a communicator is collected that was neither finalized nor aborted, likewise."""
    if not sys.is_finalizing():
        _warn(
            f"communicator {name!r}, made at {described(site)}, was dropped without finalize(): what it has of the MPI "
            "library is kept until its ranks make another communicator; use it in a with statement, or finalize it",
            site,
        )


def _warn(message: str, site: Site | None) -> None:
    file, line = ("<unknown>", 1) if site is None else (site[0].co_filename, line_of(site))
    warnings.warn_explicit(message, ResourceWarning, file, line, registry=_warned)
