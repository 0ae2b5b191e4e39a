"""The sources of a node's facts: one module each, with ``gather(root) -> dict``.

`hpccomm.doctor.facts` calls them; the rules and `hpccomm topo` read the facts.
"""
