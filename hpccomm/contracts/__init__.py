"""The types on which the packages agree: collectives, signatures, transports, backends, device routes.

Backends give point-to-point transfers (`transport`), their own collectives (`backend`) and the
facts about ranks; algorithms are data (`schedule`); what a call asks for is a `Signature`
(`signature`); what was decided for it a `Choice` (`choice`).
"""
