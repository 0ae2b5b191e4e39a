"""Finds faults of a job's nodes: facts are gathered first, and judged afterwards.

A source (`hpccomm.tools.doctor.sources`) reads facts into a tree of JSON types and never judges. A rule
(`hpccomm.tools.doctor.rules`) is data: the paths of the facts that it reads, and a pure function of them
that returns evidence of a fault. So a planted tree is a test, a saved tree is a baseline, and the
trees of many nodes can be compared.

`hpccomm.tools.doctor.command` prints the diagnoses. `hpccomm topo` and ``perf`` use some of the facts.
"""
