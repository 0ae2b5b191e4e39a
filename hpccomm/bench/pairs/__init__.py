"""`hpccomm perf pairs`: latency and bandwidth of every pair of ranks, and which node, rank or pair is slow.

- `plan` puts pairs into rounds that share no link.
- `measuring` measures them, round by round.
- `hpccomm.results.pairs` holds what was measured, blames what is slow, and prints it.
"""
