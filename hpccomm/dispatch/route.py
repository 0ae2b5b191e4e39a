"""Routes: the result of a decision, in a form that runs the call.

The dispatches make them; the lanes keep them in prepared calls and start them.
"""

from collections.abc import Callable
from dataclasses import dataclass

from hpccomm.contracts.backend import Blocking, Buffer, Start
from hpccomm.contracts.choice import Choice
from hpccomm.contracts.transport import Steps

Before = Callable[[Buffer], Buffer]
After = Callable[[Buffer], None]


@dataclass(frozen=True, slots=True)
class Route:
    """How calls of one signature are carried out.

    Attributes
    ----------
    choice : Choice
        The decision.
    start : callable
        ``start(send, recv)`` returns the polled steps.
    run : Blocking or None
        Blocks in the backend's library; synchronous calls take it if not None.
    planned : Route or None
        The route of a plan, if all ranks have one and have agreed on it.
    """

    choice: Choice
    start: Start
    run: Blocking | None = None
    planned: "Route | None" = None


def with_pre_and_post(route: Route, before: Before | None, after: After | None) -> Route:
    """Return the route with `before` on the sent and `after` on the received array."""
    if before is None and after is None:
        return route
    run = route.run

    def start_all(send: Buffer, recv: Buffer) -> Steps:
        given = before(send) if before else send  # kept alive here
        yield from route.start(given, recv)
        if after:
            after(recv)

    if run is None:
        return Route(route.choice, start_all)

    def run_all(send: Buffer, recv: Buffer) -> None:
        run.call(*run.arguments(before(send) if before else send, recv))
        if after:
            after(recv)

    return Route(route.choice, start_all, Blocking(run_all))
