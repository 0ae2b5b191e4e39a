"""``hpccomm perf``: collectives measured as nccl-tests does, and verified; pairs of ranks, memory and copies.

- `perf`, `pairs`, `memory` and `copy` are the verbs. `perf` also repeats a run in several launches. `links` measures
  for the last two.
- `flags` describes the flags of perf, and `options` holds their values, among them sizes and variants.
- `collectives` describes how each collective is called, and what its arrays hold.
- `tables` lists the tables of a run, and their lines.
- `arrays` holds arrays in host or device memory. `patterns` fills them with known data and checks the results.
- `isolated` times a block of repetitions, and repetitions one by one.
- `sweep` opens the communicators and runs all tables, of one variant or of two in turns. `report` writes them.
- `facts` describes the machine and the ranks. `nccl_tests` has programs with the names of nccl-tests'.
"""
