"""Schedules run in virtual time on a described network, without any of its machines."""

from hpccomm.schedules.simulate.events import Outcome, simulate

__all__ = ["Outcome", "simulate"]
