"""Environment variables of NCCL and of what lies below it: what they mean, and what is wrong with those that are set.

The tables are data: a file for each library, a line for each variable. `judge_all` and `differing` are pure: all
verdicts of this process are ``judge_all(settings(), here())``.
"""

from hpccomm.variables.conf import settings
from hpccomm.variables.judging import VariableVerdict, differing, judge_all
from hpccomm.variables.machine import here
from hpccomm.variables.tables import known

__all__ = ["VariableVerdict", "differing", "here", "judge_all", "known", "settings"]
