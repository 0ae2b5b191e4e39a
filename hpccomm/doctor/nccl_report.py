"""NCCL's report about itself, from its own diagnostics (from 2.31 on).

`job` adds it to the facts for ``hpccomm doctor --nccl``.
"""

import re
from typing import Any

ENVIRONMENT = {"NCCL_RUN_DIAGNOSTICS": "1", "NCCL_RUN_RAS_DIAGNOSTICS": "1"}

UNASKED: dict[str, Any] = {"unread": {"": "NCCL's own diagnostics run with --nccl only"}}

_LINE = re.compile(
    r"NCCL DIAG \[(\w+)\]\s+([^:]+): (.*?)(?: in comm 0x[0-9a-f]+(?= |$).*)?$", re.MULTILINE
)


def facts(printed: str, failure: str | None) -> dict[str, Any]:
    """Return the findings of each check by its name, such as ``p2p``: sentences that NCCL marks for review.

    Parameters
    ----------
    printed : str
        What the process printed.
    failure : str or None
        Why NCCL could not be tried; None if the process did not come to it.
    """
    if failure is None:
        return {"unread": {"": "MPI did not start, and NCCL's own diagnostics need it"}}
    sentences_by_check: dict[str, list[str]] = {}
    for tag, check, sentence in _LINE.findall(printed):
        sentences = sentences_by_check.setdefault(check.strip(), [])
        if tag != "OK":
            sentences.append(sentence)
    result: dict[str, Any] = {"says": sentences_by_check}
    if not sentences_by_check:
        why = failure or "NCCL printed no diagnostics; it has them from 2.31 on"
        result = {"unread": {"": why}}
    return result
