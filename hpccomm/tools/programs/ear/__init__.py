"""Hears the calls that a program makes on mpi4py, without a change of the program.

``hpccomm record`` puts the folder `site` before the program's modules. Python imports its ``sitecustomize`` at the start,
which waits for ``mpi4py.MPI``. When the program imports that, `classes` takes over:

- `classes` makes the classes that stand in place of mpi4py's, and record each call. ``methods.tsv`` lists their methods.
- `calls` has what is heard of a call: its ranks, and what it asks for.
- `listening` starts the recording when MPI has started, and knows the communicators.
- `hang` says who waits for whom when a call takes too long.

This is the only place that changes names of another module. Nothing else loads it.
"""
