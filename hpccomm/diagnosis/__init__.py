"""What went wrong in a job, from its log or from the flight dumps of its ranks.

`dumps` reads dumps, `history` joins them by communicator and collective number, `faults` finds who is
missing, who differs and who waits for whom, `words` says it; `timeline`, `picture` and `page` draw it,
`pytorch` writes it for PyTorch's analyser. `meanings` knows what messages mean,
and `log` finds them in a log.
"""
