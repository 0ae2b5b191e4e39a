"""Rules about NCCL: the library of each rank, and the results of NCCL's own diagnostics."""

import re

from hpccomm.doctor.rule import Faults, Texts, rules
from hpccomm.doctor.rules.mpi import one_library

CHECKS = {
    "nccl.says_p2p": "p2p",
    "nccl.says_net_bw": "net bw",
    "nccl.says_inventory": "GPU inventory",
    "nccl.says_driver": "CUDA driver version",
    "nccl.says_ecc": "ECC",
    "nccl.says_nvlink": "NVLink",
    "nccl.says_environment": "NCCL environment",
}
"""NCCL's checks by the rules that translate them (NCCL's guide, Diagnostics and RAS)."""


def _one_version(versions: Texts) -> Faults:
    if len(set(versions)) > 1:
        yield f"ranks of this node have NCCL {', '.join(sorted(set(versions)))}"


def _stack(versions: Texts, soft: int | None) -> Faults:
    for version in sorted(set(versions)):
        if soft is None and [*map(int, re.findall(r"\d+", version))][:2] < [2, 28]:
            yield f"the stack is unlimited; NCCL {version} then gives its threads a small one"


RULES = rules({
    "nccl.one_library": (one_library, "ranks.*.nccl", "ranks.*.libraries.libnccl"),
    "nccl.one_version": (_one_version, "ranks.*.nccl"),
    "nccl.stack": (_stack, "ranks.*.nccl", "limits.stack.soft"),
    **{name: (tuple, f"nccl.says.{check}") for name, check in CHECKS.items()},
})  # fmt: skip
