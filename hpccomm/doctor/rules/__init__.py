"""The rules: one module an area, each with its tuple ``RULES``.

`hpccomm.doctor.judge` applies them; ``hpccomm doctor --list`` prints them.
"""

from hpccomm.doctor.rule import Rule
from hpccomm.doctor.rules import gpus, host, limits, mpi, nccl, network, pcie, slurm

_AREAS = (mpi, limits, host, network, pcie, gpus, nccl, slurm)

RULES: tuple[Rule, ...] = tuple(rule for area in _AREAS for rule in area.RULES)
"""All rules, in their order of output."""
