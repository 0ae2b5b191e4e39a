"""The cost of an algorithm on a described network: exactly from its schedule, or estimated.

- `network` and `network_files` describe the network. `terms` estimates, for the policy.
- `model`, `rounds`, `links` and `repeats` price a schedule exactly.

``hpccomm simulate`` and ``auto`` ask it.
"""
