"""`hpccomm perf`: collectives measured the way nccl-tests does, and verified.

`flags` says what can be asked for, `sizes` which sizes that means, `collectives` what each
collective moves, `patterns` and `verification` what the arrays hold before and must hold after,
`timing` how a block of repetitions is timed, `sweep` runs a table of them, `report` writes it down.
"""
