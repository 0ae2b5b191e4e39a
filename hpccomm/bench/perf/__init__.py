"""`hpccomm perf`: collectives measured the way nccl-tests does, and verified.

- `flags` describes the flags, `options` holds their values, and `sizes` the sizes to measure.
- `collectives` describes how each collective is called, and `layouts` what its arrays hold.
- `cases` and `blocks` list the lines and the tables of a run.
- `host_memory` and `device_memory` hold the arrays, `sources` chooses between them.
- `patterns` and `verification` fill arrays with known data and check the results.
- `measure` measures one case, `timing` times a block of repetitions.
- `sweep` runs all tables, and `report` writes them.
"""
