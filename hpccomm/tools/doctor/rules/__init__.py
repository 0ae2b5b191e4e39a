"""The rules: one module an area, each with its tuple ``RULES``.

`hpccomm.tools.doctor.rule` applies them; ``hpccomm doctor --list`` prints them.
"""

from hpccomm.tools.doctor.rule import Rule
from hpccomm.tools.doctor.rules import gpus, host, mpi, network, slurm

_AREAS = (mpi, host, network, gpus, slurm)

RULES: tuple[Rule, ...] = tuple(rule for area in _AREAS for rule in area.RULES)
"""All rules, in their order of output."""
