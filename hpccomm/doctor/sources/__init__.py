"""The sources of a node's facts: one module each, whose ``gather`` fills a `Reading`.

`hpccomm.doctor.facts` calls them; the rules and `hpccomm topo` read the facts.
"""
