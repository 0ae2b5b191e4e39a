"""The types on which the packages agree: collectives, signatures, transports, backends.

Backends give point-to-point transfers (`transport`), their own collectives (`backend`) and the
facts about ranks. A `Signature` (`signature`) is a call without its memory. A `Choice`
is the decision for it. `device` is the contract of device arrays.

All packages above import from here; authors of backends implement it.
"""
