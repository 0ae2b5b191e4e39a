"""The cost of an algorithm on a described network: exact, from its schedule, or estimated.

- `network` describes the network. `terms` estimates, for the policy of ``auto``.
- `rounds` prices a schedule exactly, over the queues of `links`.

The policy (`hpccomm.calls.policy`), ``hpccomm simulate``, ``tune`` and ``advise`` use it.
"""
