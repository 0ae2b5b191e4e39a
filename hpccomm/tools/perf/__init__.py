"""`hpccomm perf`: collectives measured the way nccl-tests does, and verified.

- `flags` describes the flags, and `options` holds their values, among them sizes and variants.
- `collectives` describes how each collective is called, and what its arrays hold.
- `tables` lists the tables of a run, and their lines.
- `memory` holds arrays in host memory or in a device's.
- `patterns` and `verification` fill arrays with known data and check the results.
- `isolated` times a block of repetitions, and repetitions one by one; `measure` one case.
- `sweep` opens the communicators, and runs all tables, of one variant or of two in turns.
- `report` writes them.
"""
