"""Write each rank's calls as counters for Prometheus, in files that a node exporter collects.

``mpiexec -n 4 python prometheus_counters.py /var/lib/node_exporter/hpccomm.prom``
"""

import sys
from pathlib import Path

import numpy as np
from prometheus_client import CollectorRegistry, write_to_textfile
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

import hpccomm

SUMS = {
    "calls": "Calls that have ended, failed ones included.",
    "bytes": "Bytes of this rank's larger array, summed over the calls.",
    "seconds": "Seconds from call to completion, summed over the calls.",
}


class CallCounters(Collector):
    """The sums of ``comm.stats()``, taken when they are written: a call costs nothing more."""

    def __init__(self, comm: hpccomm.Communicator) -> None:
        self.comm = comm

    def collect(self) -> list[CounterMetricFamily]:
        """Return a counter for each sum, by communicator, rank, call and size class."""
        labels = ("communicator", "rank", "call", "size")
        counters = [
            CounterMetricFamily(f"hpccomm_{name}", meaning, labels=labels)
            for name, meaning in SUMS.items()
        ]
        for (call, size), tally in self.comm.stats().items():
            sums = (tally.calls, tally.nbytes, tally.seconds)
            for counter, value in zip(counters, sums, strict=True):
                counter.add_metric((self.comm.name, str(self.comm.rank), call, size), value)
        return counters


if __name__ == "__main__":
    with hpccomm.new_comm() as comm:
        registry = CollectorRegistry()
        registry.register(CallCounters(comm))
        file = Path(sys.argv[1]).with_suffix(f".{comm.rank}.prom")
        for _ in range(3):  # the steps of a program
            comm.all_reduce(np.ones(1000))
            write_to_textfile(str(file), registry)  # replaces the file at once
