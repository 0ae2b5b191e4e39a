"""What each algorithm costs: a function of a `Case` for each, in a file for each family."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from hpccomm.cost.case import Case
from hpccomm.cost.formulas import ring
from hpccomm.cost.path import Stage

Formula = Callable[[Case], list[Stage]]

FORMULAS: Mapping[str, Mapping[str, Formula]] = MappingProxyType(
    {
        "all_reduce": {"ring": ring.all_reduce},
        "reduce_scatter": {"ring": ring.reduce_scatter},
        "all_gather": {"ring": ring.all_gather},
    }
)
"""For each collective its algorithms' formulas by name."""
