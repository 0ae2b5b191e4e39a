"""`hpccomm perf`: collectives measured the way nccl-tests does, and verified.

- `flags` describes the flags, `options` holds their values, and `sizes` the sizes to measure.
- `collectives` describes how each collective is called, and `layouts` what its arrays hold.
- `tables` lists the tables of a run, and their lines.
- `memory` holds arrays in host memory or in a device's.
- `patterns` and `verification` fill arrays with known data and check the results.
- `timing` times a block of repetitions, `isolated` repetitions one by one, and `measure` one case.
- `sweep` opens the communicators, and runs all tables, of one variant or of two in turns.
- `report` writes them.
"""
