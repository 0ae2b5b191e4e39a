"""The sources of a node's facts: functions that fill a `Reading`, by kind.

`hpccomm.tools.doctor.job` calls them; the rules and `hpccomm topo` read the facts.
"""
