"""Facts of the kernel's log since the start: GPU faults (Xid), killed processes, machine checks."""

import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

from hpccomm.doctor.reading import Reading

_XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]+)\): (\d+)(.*)")
_LOST = re.compile(r"NVRM: (?!Xid).*fallen off the bus.*")
_KILLED = re.compile(
    r"^\d+,\d+,(\d+),.*(?:Out of memory|Memory cgroup out of memory).*Killed process \d+ \(([^)]*)\)",
    re.MULTILINE,
)

DAY = 86_400
"""Seconds for which a killed process counts. Older ones say little about the node now."""
_MACHINE_CHECK = re.compile(
    r"\[Hardware Error\]: (?:Uncorrected.*|event severity: (?:fatal|recoverable).*|CPU \d+: Machine Check.* Bank \d+: [abef][\da-f]{15}.*)"
)
"""Errors that were not corrected: bit 61 of the bank's status."""


def gather(reading: Reading) -> None:
    """Read the facts; ``xids`` by device and number, with their count and first text.

    ``killed`` processes are from the last day; machine checks are uncorrected ones.
    """
    try:
        text = _log(reading.path("/dev/kmsg"))
    except OSError as error:
        why = f"closed to this process ({error.strerror}): root of the host sees it"
        reading.miss("", f"the kernel's log, /dev/kmsg, is {why}")
        return
    xids: dict[tuple[str, int], dict[str, Any]] = {}
    for device, number, more in _XID.findall(text):
        new = {"device": device, "xid": int(number), "times": 0, "text": more.strip(", ")[:160]}
        xids.setdefault((device, int(number)), new)["times"] += 1
    reading.put("xids", list(xids.values()))
    reading.put("lost", sorted(set(_LOST.findall(text)))[:16])
    up = reading.take("up", lambda: float(reading.text("/proc/uptime").split()[0])) or 0.0
    late = [name for at, name in _KILLED.findall(text) if int(at) / 1e6 > up - DAY]
    reading.put("killed", sorted(late))
    reading.put("machine_checks", _MACHINE_CHECK.findall(text)[:16])


def _log(file: Path) -> str:
    """Return all records: one a read; an overwritten one is an error of the device."""
    descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK)
    records = []
    try:
        with suppress(BlockingIOError):  # the last one was read
            while True:
                with suppress(BrokenPipeError):  # it was overwritten
                    if not (record := os.read(descriptor, 1 << 16)):
                        break
                    records.append(record)
    finally:
        os.close(descriptor)
    return b"".join(records).decode(errors="replace")
