"""A ReFrame test of `hpccomm perf pairs`: no node, rank or pair is slow.

reframe -C jobs/reframe/settings.py -c jobs/reframe/hpccomm_pairs.py -S nodes=8 -r

It takes one rank on each node with `-S tasks_per_node=1`. docs/how_to/links.rst says what counts as slow.
"""

import json
from pathlib import Path
from typing import Any

import reframe as rfm
import reframe.utility.sanity as sn
from hpccomm_ranks import HpccommTest  # ReFrame has the folder of a test on its path
from reframe.core.builtins import performance_function, run_before, sanity_function, variable

RESULTS = "pairs.h5"
VERDICT = "verdict.json"


@rfm.simple_test
class HpccommPairs(HpccommTest):
    """Every pair of ranks; it fails where something is slow, and says what.

    Attributes
    ----------
    expect : str
        What pairs of different nodes should have, as ``--expect`` takes it. Empty: what the best quarter
        of them has.
    """

    descr = "latency and bandwidth of every pair of ranks"
    valid_systems = ["-gpu"]
    backend = "mpi"
    expect = variable(str, value="")
    keep_files = [RESULTS, VERDICT]

    @run_before("run")
    def set_arguments(self) -> None:
        """Set the command line of `hpccomm`."""
        self.executable_opts = [
            *("perf", "pairs", "--backend", self.backend),
            *(("--expect", self.expect) if self.expect else ()),
            *("--output", RESULTS, "--json", VERDICT),
            *self.flags,
        ]

    @sanity_function
    def nothing_is_slow(self) -> Any:
        """Nothing is slow; else the message has the lines that name it."""
        slow = sn.extractall(r"^# (?:SLOW|DRAIN|UNDECIDED) .*", self.stdout)
        return sn.all(
            [
                sn.assert_eq(slow, [], "{0}"),
                sn.assert_found(r"^# Nothing is slow", self.stdout),
            ]
        )

    @performance_function("us")
    def latency(self) -> float:
        """Latency of the slowest pair."""
        return max(link["latency_us"] for link in self.links())

    @performance_function("GB/s")
    def bandwidth(self) -> float:
        """Bandwidth of the slowest pair, in its slower direction."""
        return min(min(link["there_GBps"], link["back_GBps"]) for link in self.links())

    def links(self) -> list[dict[str, float]]:
        """Read the pairs that were measured."""
        text = (Path(self.stagedir) / VERDICT).read_text(encoding="utf-8")
        return list(json.loads(text)["links"])
