"""The rules: one module an area, each with its tuple ``RULES``.

`hpccomm.doctor.judge` applies them; ``hpccomm doctor --list`` prints them.
"""

from hpccomm.doctor.rule import Rule
from hpccomm.doctor.rules import gpus, host, limits, mpi, nccl, network, pcie, slurm

RULES: tuple[Rule, ...] = (
    *mpi.RULES,
    *limits.RULES,
    *host.RULES,
    *network.RULES,
    *pcie.RULES,
    *gpus.RULES,
    *nccl.RULES,
    *slurm.RULES,
)
"""All rules, in their order of output."""
