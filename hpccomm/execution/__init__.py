"""Runs one rank's schedule over a transport: `program` makes it ready, `runner` runs it."""

from hpccomm.execution.program import Program, compiled
from hpccomm.execution.runner import Room, Runner, completed

__all__ = ["Program", "Room", "Runner", "compiled", "completed"]
