"""Contenders measured side by side: what the benchmarks of this folder share.

cases
    One call of a collective: its arrays, what goes in, what must come out.
contenders
    Who makes that call: hpccomm in its ways, mpi4py, a copy of the array.
gloo
    PyTorch's Gloo as a contender.
rounds
    The turns that contenders take, and what is made of their times.
tables, picture, record
    Text and reStructuredText, SVG and PNG, a results file.
command
    The arguments that the commands share, and the run from first to last.
"""
