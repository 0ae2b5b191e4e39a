"""`hpccomm perf pairs`: latency and bandwidth of every pair of ranks, and what is slow.

- `measuring` puts pairs into rounds that share no link, and measures them round by round.
- `hpccomm.results.pairs` stores the figures, locates slow nodes, ranks and pairs, and prints them.
"""
