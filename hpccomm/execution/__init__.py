"""Runs one rank's schedule over a transport.

`program` makes it ready and `runner` runs it; `forms` chooses among several, `reached` carries out
steps on peers' memory. `enqueued` puts a program on a stream, for device arrays; it is imported by
itself, since it needs CUDA.
"""

from hpccomm.execution.forms import Forms
from hpccomm.execution.program import Program, compiled
from hpccomm.execution.room import Room
from hpccomm.execution.runner import Runner, completed

__all__ = ["Forms", "Program", "Room", "Runner", "compiled", "completed"]
