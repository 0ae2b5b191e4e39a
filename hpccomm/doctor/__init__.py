"""What is wrong with the nodes of a job: facts are gathered first, and judged afterwards.

A source (`hpccomm.doctor.sources`) reads facts into a tree of JSON types and never judges. A rule
(`hpccomm.doctor.rules`) is data: which facts it reads, and a pure function of them that returns evidence of a
fault. So a planted tree is a test, a saved tree is a baseline, and the trees of many nodes can be laid side by
side.
"""
