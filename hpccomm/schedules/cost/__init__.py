"""The cost of an algorithm on a described network: exactly from its schedule, or estimated.

- `network` describes the network. `terms` estimates, for the policy.
- `rounds` prices a schedule exactly, over the queues of `links`.

``hpccomm simulate`` and ``auto`` ask it.
"""
