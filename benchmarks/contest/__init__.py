"""Contenders measured side by side: what the benchmarks of this folder share.

cases
    One call of a collective: its arrays, what goes in, what must come out.
contenders
    Who makes that call: hpccomm in its ways, mpi4py, a copy of the array.
gloo
    PyTorch's Gloo as a contender.
rounds, race
    The turns that contenders take, and all contenders on one case.
results, verdicts, links
    What is made of their times; what the links between nodes allow.
promises, figures, wanted
    What the documentation promises, the figures that are held against it, and their names.
tables, picture, record, machine
    Text and reStructuredText, SVG and PNG, a results file, the machine in words.
command
    The arguments that ``node.py`` and ``cluster.py`` share, and their run from first to last.
"""
