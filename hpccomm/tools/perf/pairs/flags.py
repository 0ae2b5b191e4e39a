"""The flags of ``hpccomm perf pairs``.

`hpccomm.tools.perf.pairs.command` reads them, and `hpccomm.tools.slurm.command` passes them on.
"""

from argparse import ArgumentTypeError

from hpccomm import units
from hpccomm.tools.flag import Flag
from hpccomm.tools.perf import readers
from hpccomm.tools.perf.names import DEVICE, HOST


def expected(text: str) -> dict[str, float]:
    """Read what pairs should have: seconds and bytes a second."""
    read = {"latency": units.seconds, "bandwidth": units.rate}
    parts = [part.partition("=") for part in text.split(",")]
    unitless = any(name == "latency" and not value.endswith("s") for name, _, value in parts)
    try:
        fields = {f"expected_{name}": read[name](value) for name, _, value in parts}
    except (KeyError, ValueError):
        fields = {}
    if unitless or not fields or not all(fields.values()):
        raise ArgumentTypeError(
            f"{text!r} is not an expectation; give latency=5us,bandwidth=10G or one of the two"
        )
    return fields


_COUNT = readers.integer(1, 100_000)

FLAGS = (
    Flag("-b --bytes SIZE 1M", readers.segment, "message for bandwidth"),
    Flag("-n --iters N 20", _COUNT, "messages for latency"),
    Flag("--streams N 5", _COUNT, "messages for bandwidth, in each direction"),
    Flag(
        "--budget SECONDS 60s",
        readers.duration,
        "time after which no further round begins, except to measure again what seems slow, which may take "
        "as long once more",
    ),
    Flag(
        "--threshold PERCENT 80%",
        readers.percentage,
        "part of the expected bandwidth below which a pair is slow",
    ),
    Flag(
        "--latency-threshold PERCENT 50%",
        readers.percentage,
        "likewise of the inverse of latency: 50% is twice the time",
    ),
    Flag(
        "--expect latency=TIME,bandwidth=SIZE",
        expected,
        "what pairs of different nodes should have, such as latency=5us,bandwidth=10G (bytes a second, G is "
        "1e9); by default what the best quarter of the pairs has",
    ),
    Flag("--backend NAME auto", str, "as in perf"),
    readers.choice("--arrays", (HOST, DEVICE), "kind of memory", "memory of the messages", HOST),
    Flag("-T --timeout SECONDS 60", readers.integer(1), "deadline of each message"),
    Flag("--output FILE.h5", readers.file, "add the run to this file"),
    Flag("--json FILE.json", readers.file, "write what was measured and found, for programs"),
)
