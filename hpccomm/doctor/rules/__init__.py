"""The rules: one module an area, each with its tuple ``RULES``."""

from hpccomm.doctor.rule import Rule
from hpccomm.doctor.rules import limits

RULES: tuple[Rule, ...] = (*limits.RULES,)
"""All rules, in the order in which they are shown."""
