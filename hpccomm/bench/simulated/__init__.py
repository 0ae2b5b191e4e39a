"""Runs in virtual time on a described cluster.

A `request` says what to simulate, `tables` which calls that means, `runs` times and reports them,
`comparison` puts algorithms side by side and `picture` draws that.
"""
