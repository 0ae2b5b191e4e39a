"""Runs one rank's schedule over a transport.

`program` makes it ready and `runner` runs it; `forms` chooses among several, `reached` carries out
steps on peers' memory. `enqueued` puts a program on a stream, for device arrays; it is imported by
itself, since it needs CUDA.
"""

from hpccomm.dispatch.execution.program import Program, compiled
from hpccomm.dispatch.execution.runner import Runner
from hpccomm.dispatch.execution.variants import Variants

__all__ = ["Program", "Runner", "Variants", "compiled"]
