"""The rules: one module an area, each with its tuple ``RULES``.

`hpccomm.doctor.judge` applies them; ``hpccomm doctor --list`` prints them.
"""

from hpccomm.doctor.rule import Rule
from hpccomm.doctor.rules import gpus, host, mpi, network, slurm

_AREAS = (mpi, host, network, gpus, slurm)

RULES: tuple[Rule, ...] = tuple(rule for area in _AREAS for rule in area.RULES)
"""All rules, in their order of output."""
