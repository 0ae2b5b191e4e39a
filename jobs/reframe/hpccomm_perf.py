"""ReFrame tests of `hpccomm perf`: collectives are right, and as fast as their references.

    reframe -C jobs/reframe/settings.py -c jobs/reframe/hpccomm_perf.py -r

`HpccommPerf` is the class to derive tests from. The classes behind it are ready to run. docs/how_to/reframe.rst
says how to set what they measure, and their references.
"""

import json
from pathlib import Path
from typing import Any

import reframe as rfm
import reframe.utility.sanity as sn
from hpccomm_ranks import HpccommTest  # ReFrame has the folder of a test on its path
from reframe.core.builtins import (
    parameter,
    performance_function,
    run_after,
    run_before,
    sanity_function,
    variable,
)

RESULTS = "results.h5"
"""hpccomm's results file, with every repetition on every rank."""

TABLE = "results.json"
"""The table in nccl-tests' JSON, which has more digits than the printed one."""


class HpccommPerf(HpccommTest):
    """A run of `hpccomm perf` on one collective.

    Each test keeps its results file beside its output.

    Attributes
    ----------
    collective : str
        What is measured.
    smallest, largest : str
        The range of sizes, as ``-b`` and ``-e`` take them.
    factor : int
        The factor between sizes.
    repetitions : int
        Repetitions of each size.
    algorithm : str
        As ``--algorithm`` takes it.
    """

    collective = variable(str, value="all_reduce")
    smallest = variable(str, value="8")
    largest = variable(str, value="64M")
    factor = variable(int, value=8)
    repetitions = variable(int, value=20)
    algorithm = variable(str, value="auto")

    keep_files = [RESULTS, TABLE]

    @run_before("run")
    def set_arguments(self) -> None:
        """Set the command line of `hpccomm`."""
        self.executable_opts = [
            *("perf", self.collective),
            *("-b", self.smallest, "-e", self.largest, "-f", str(self.factor)),
            *("-n", str(self.repetitions)),
            *("--backend", self.backend, "--algorithm", self.algorithm),
            *("--output", RESULTS, "-J", TABLE),
            *self.flags,
        ]

    @sanity_function
    def is_right_and_complete(self) -> Any:
        """Every result was verified and right, and the table has its end."""
        # Evaluated first: without its end, a run has not written the table that is read below.
        sn.evaluate(
            sn.all(
                [
                    sn.assert_found(r"^# Out of bounds values : 0 OK", self.stdout),
                    sn.assert_found(r"^# Collective test concluded: ", self.stdout),
                ]
            )
        )
        halves = [line[half] for line in self.lines() for half in ("out_of_place", "in_place")]
        wrong = {half["nwrong"] for half in halves if half is not None}
        # The number is None where nothing was verified, and a barrier has nothing to verify.
        right = {None} if self.collective == "barrier" else {0}
        return sn.assert_eq(wrong, right, "numbers of wrong values in the table: {0}")

    @performance_function("us")
    def latency(self) -> float:
        """Time of one operation at the smallest size, out of place."""
        smallest = min(line["size"] for line in self.lines())
        times = [
            float(line["out_of_place"]["time"]) for line in self.lines() if line["size"] == smallest
        ]
        return max(times)  # of several types or reductions, the slowest

    @performance_function("GB/s")
    def bus_bandwidth(self) -> float:
        """Bus bandwidth at the largest size, out of place."""
        largest = max(line["size"] for line in self.lines())
        busbw = [
            float(line["out_of_place"]["bus_bw"])
            for line in self.lines()
            if line["size"] == largest
        ]
        return min(busbw)

    @performance_function("GB/s")
    def average_bus_bandwidth(self) -> float:
        """Mean of all bus bandwidths of the table, out of place and in place."""
        return float(self.table()["average_bus_bandwidth"]["bandwidth"])

    def table(self) -> dict[str, Any]:
        """Read the table of the run."""
        text = (Path(self.stagedir) / TABLE).read_text(encoding="utf-8")
        return dict(json.loads(text))

    def lines(self) -> list[dict[str, Any]]:
        """Return the lines of the table: ``size`` in bytes, ``out_of_place`` and ``in_place`` figures."""
        return list(self.table()["results"])


@rfm.simple_test
class CpuLatency(HpccommPerf):
    """Small arrays in host memory."""

    descr = "latency of arrays in host memory"
    valid_systems = ["-gpu"]
    backend = "mpi"
    largest = "1K"
    factor = 2
    repetitions = 1000


@rfm.simple_test
class CpuBandwidth(HpccommPerf):
    """Large arrays in host memory."""

    descr = "bandwidth of arrays in host memory"
    valid_systems = ["-gpu"]
    backend = "mpi"
    smallest = "1M"
    factor = 4


@rfm.simple_test
class CpuCollectives(HpccommPerf):
    """Each collective that moves data, on any number of ranks, in host memory."""

    descr = "one collective on arrays in host memory"
    each = parameter(
        [
            "all_reduce",
            "broadcast",
            "reduce",
            "all_gather",
            "reduce_scatter",
            "all_to_all",
            "all_to_all_v",
            "gather",
            "scatter",
            "send_recv",
            "neighbor_all_to_all",
        ]
    )
    valid_systems = ["-gpu"]
    backend = "mpi"
    largest = "1M"
    factor = 32

    @run_after("init")
    def take_each(self) -> None:
        """Measure the collective of this variant."""
        self.collective = self.each


@rfm.simple_test
class NcclAllReduce(HpccommPerf):
    """Arrays on GPUs, by NCCL."""

    descr = "all-reduce of arrays on GPUs by NCCL"
    valid_systems = ["+gpu"]
    backend = "nccl"
    largest = "1G"
