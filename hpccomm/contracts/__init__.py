"""The types on which the packages agree: collectives, signatures, transports, backends.

Backends offer point-to-point transfers (`transport`), their own collectives (`backend`) and
facts about ranks. A `Signature` (`signature`) is a call without its memory, and a `Choice`
is the decision how the call is carried out. `device` is the contract of device arrays. `pairing` compares the lists of
uneven calls, and `variables` lists the environment variables.

All packages above import from here; authors of backends implement `backend` and `transport`.
"""
