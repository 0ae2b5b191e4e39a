"""Seeded faults on real MPI jobs: every wait ends with an answer, and no number is wrong in silence.

``CHAOS_SEEDS=1-300 python -m pytest tests/chaos --all`` runs cases 1 to 300. Each case is a job of a few
ranks that makes right calls in a loop; one rank does one thing wrong at one moment. The number of a case
is its seed: it alone says what happens.

=============  ======================================================================================
`cases`        seed → `Case`: which fault, in which operation, on which rank, when
`victim`       the program that each rank of the job runs
`operations`   the right calls, with their results compared with NumPy
`faults`       what the faulty rank does
`running`      starts the job, ends it if it hangs, and looks for what it left behind
`expecting`    what hpccomm promises for a case
`judging`      whether what was seen is what was promised; a pure function
=============  ======================================================================================
"""
