"""Tags of the messages of plans on host arrays. `plan_agreement` takes them."""

from hpccomm.contracts.backend import Backend
from hpccomm.contracts.transport import Transport
from hpccomm.errors import UsageError
from hpccomm.runtime.engine import CallEngine


class PlanTags:
    """The tags of one communicator's plans, and the transports on which they are.

    The first plan with messages makes a transport, and so does each that finds too few tags left.

    Parameters
    ----------
    backend : Backend
        Makes the transports.
    calls : CallEngine
        The communicator's.
    """

    def __init__(self, backend: Backend, calls: CallEngine) -> None:
        self._backend = backend
        self._calls = calls
        self._transport: Transport | None = None
        self._next = 0

    def take(self, count: int) -> tuple[Transport, int]:
        """Return a transport and the first of `count` tags on it. Collective, with the same count; blocks.

        Raises
        ------
        UsageError
            If a transport has no tags left.
        """
        transport = self._transport or self._made()
        tags = transport.largest_tag + 1
        if count > tags:
            raise UsageError(
                f"the plan has {count} messages from one rank to another, and the backend has "
                f"{tags} tags; plan fewer, or make larger messages"
            )
        if self._next + count > tags:
            transport = self._made()
        first = self._next
        self._next += count
        return transport, first

    def _made(self) -> Transport:
        """Make a transport, for the plans to come also where this one is refused."""
        with self._calls.beside_watchdog("planning messages", ordered=True):
            transport = self._backend.planned()
        self._transport, self._next = transport, 0
        return transport
