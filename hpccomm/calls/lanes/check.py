"""The check that all ranks make the same call. The ranks agree on a call before data moves.

They agree on the first call of each kind and size, and on each call so large that the agreement takes a
negligible part of its time. Every agreement also compares the digests of all calls so far. So calls
that are known one by one, but made in another order, are found at the next agreement. One of 1,024
calls is agreed on for that reason alone.

The lanes, `hpccomm.calls.core` and plans (`hpccomm.communicator.planning`) use it.
"""

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from itertools import permutations
from typing import Any

import numpy as np

from hpccomm.backends.control import Control, Result
from hpccomm.contracts import pairing
from hpccomm.contracts.backend import Implementation
from hpccomm.contracts.signature import CallFingerprint, Signature, compared, written
from hpccomm.contracts.transport import Steps
from hpccomm.errors import (
    CollectiveTimeout,
    CommunicationError,
    CommunicatorAborted,
    HpccommError,
    RankMismatch,
    untied,
)
from hpccomm.memory.views import View, address
from hpccomm.reductions import ReduceOp
from hpccomm.runtime import recorder
from hpccomm.runtime.callpath import PreparedCall
from hpccomm.runtime.engine import CallEngine
from hpccomm.runtime.progress import COMPARED, DIGEST, FINALIZE, Operation, digested
from hpccomm.runtime.service import keep
from hpccomm.runtime.traffic import OTHERS, in_words, left_over
from hpccomm.runtime.verdict import NO_CALL, refusals, side_by_side
from hpccomm.settings import CHECK_ALL, CHECK_OFF

logger = logging.getLogger("hpccomm")

LARGE_BYTES = 16 << 20
"""Bytes from which the ranks agree on every call."""

KNOWN = 1 << 16
"""Most fingerprints that are remembered. One more clears all of them, since all ranks must forget alike."""

LARGEST = Signature("all_reduce", np.dtype(np.int64), (7,), op=ReduceOp.MAX)
"""The call that finds the largest and the smallest of three numbers of all ranks, and whether a rank has more to
tell."""

ENDING = compared(FINALIZE, {"operation": FINALIZE})


class Check:
    """The agreements of the ranks of one communicator.

    Parameters
    ----------
    engine : CallEngine
        The communicator's engine.
    control : Control
        The communicator's control plane.
    setting : str
        When ranks agree on calls: one of `hpccomm.settings.CHECKS`.
    """

    def __init__(self, engine: CallEngine, control: Control, setting: str) -> None:
        alone = engine.backend.size == 1
        self._engine = engine
        self._control = control
        self._setting = CHECK_OFF if alone else setting
        self._known: set[int] = set()
        self._agreed = 0  # number of the last call that was agreed
        if self._setting != CHECK_OFF:
            engine.agreement = 1
            engine.agree_on, engine.compare = self.agree_on, self.compare

    def always(self, label: CallFingerprint) -> bool:
        """Return whether the ranks agree on each call with that label. The same on all ranks."""
        if self._setting == CHECK_ALL:
            return True
        return self._setting != CHECK_OFF and label.agreed_bytes >= LARGE_BYTES

    def due(self, label: CallFingerprint) -> bool:
        """Return whether the ranks must agree on a call that is issued next. The same on all ranks."""
        if self._setting == CHECK_OFF or not label.values:
            return False
        compared = (self._engine.number + 1) & COMPARED == COMPARED
        return compared or not self.known(label) or self.always(label)

    def known(self, label: CallFingerprint) -> bool:
        """Return whether the ranks need not agree on calls with that label any more."""
        return self._setting == CHECK_OFF or label.fingerprint in self._known

    def learn(self, prepared: PreparedCall | None, label: CallFingerprint) -> None:
        """Remember that the ranks have agreed on calls with that label. All ranks do so at the same call.

        If there are more than `KNOWN` labels, all ranks forget all labels.
        """
        if self._setting == CHECK_OFF:
            return
        if label.fingerprint not in self._known:  # the same on all ranks
            if len(self._known) >= KNOWN:
                self._known.clear()
                self._engine.agreement += 1
            self._known.add(label.fingerprint)
        if prepared is not None and prepared.label is label and not self.always(label):
            prepared.agreed = self._engine.agreement

    # Ways to agree.

    def operation(self, operation: Operation) -> Operation:
        """Return an operation that begins with the agreement, if that is due. It must be issued next."""
        label = operation.label
        if not operation.ordered or not self.due(label):
            return operation
        engine = self._engine
        digest = digested(engine.digest, label.fingerprint)
        # Learned now, and not when the operation begins: all ranks must learn at the same call.
        self.learn(None, label)
        agreement = self._agreement(label, engine.number + 1, digest, engine.site)

        def agreed() -> Steps:
            yield from agreement
            yield from operation.start()

        return replace(operation, start=agreed)

    def steps(self, label: CallFingerprint) -> Steps:
        """Return the steps by which the ranks agree on the call that was begun last."""
        self.learn(None, label)
        return self._on_current(label)

    def agree_on(
        self, prepared: PreparedCall, entry: recorder.CallRecord, arguments: tuple[Any, ...]
    ) -> None:
        """Agree on the call that has just begun, under its deadline, unless the ranks have done so."""
        engine, label = self._engine, prepared.label
        new = not self.known(label) or self.always(label)
        if new or engine.number & COMPARED == COMPARED:
            self.compare(label, entry)
            if new and engine.backend.shares_process and prepared.kind and len(arguments) == 2:
                engine.run_part(entry, self._apart(label, *arguments))
        self.learn(prepared, label)

    def compare(self, label: CallFingerprint, entry: recorder.CallRecord) -> None:
        """Agree on the call that has just begun, under its deadline."""
        engine = self._engine
        if engine.queue:  # calls that were started before agree before
            with engine.seen_as(entry, recorder.POLLED):
                engine.drain(entry[recorder.TIMEOUT], engine.queue)
        engine.run_part(entry, self._on_current(label))
        if engine.gate.error is not None:  # a library's call, which may follow, does not check
            raise engine.gate.error

    def agree(
        self,
        label: CallFingerprint,
        error: HpccommError | None,
        tell: Callable[[], bytes] = bytes,
        more: bool = False,
    ) -> list[bytes] | None:
        """Raise on every rank unless all have the same values; a rank with an `error` raises that.

        If a rank has `more` to tell, return the results of every rank's `tell`, else None. Collective; blocks.
        """
        engine = self._engine
        if engine.backend.size == 1:
            if error is not None:
                raise untied(error)
            return [tell()] if more else None
        refused: list[HpccommError] = []
        told: list[list[bytes] | None] = []
        with engine.part_of(label):
            agreement = self._on_current(label, error, tell, more)

            def steps() -> Steps:
                try:
                    told.append((yield from agreement))
                except HpccommError as wrong:  # the communicator has not failed: all ranks raise
                    refused.append(wrong)

            engine.run_steps(label.name, steps())
            if refused:
                engine.digest = 0  # the difference was raised, and must not appear in later calls
                raise refused.pop()
        return told[0]

    def end(self) -> CommunicationError | None:
        """Return the mismatch in the calls of all ranks, at the end of the communicator; None without one.

        The error may also be that a rank has not reached the end before the deadline. If a rank has failed, or is
        gone, the communicator has failed afterwards. Collective; blocks.
        """
        if self._setting == CHECK_OFF:
            return None
        try:
            rank, mine = self._engine.origin.rank, self._unreceived()
            marks = partial(
                pairing.balance,
                (
                    ((rank, peer, channel, sent), (peer, rank, channel, posted))
                    for peer, counts in mine.items()
                    for channel, sent, posted in counts
                ),
            )
            everyone = self.agree(ENDING, None, marks, any(mine.values()))
            if everyone is not None and not pairing.balanced(everyone):
                with self._engine.part_of(FINALIZE):
                    self._engine.run_steps(FINALIZE, self._told(mine))
        except RankMismatch as error:
            return error
        except CommunicationError as error:
            logger.info("the calls of the ranks are not compared at the end: %s", error)
            self._engine.fail(error)
            return error if self._raised_at_end(error) else None
        return None

    def _unreceived(self) -> dict[int, list[Any]]:
        """Return, by peer, the numbers of messages of each channel that this rank has begun to send and to receive."""
        every = self._engine.traffic.everything().items()
        return {peer: [each for each in counts if each[0] >= OTHERS] for peer, counts in every}

    def _told(self, mine: dict[int, list[Any]]) -> Steps:
        """Return steps that log all ranks' unreceived messages in one line."""
        engine = self._engine
        came = yield from self._exchanged(list(mine.items()))
        lost = left_over({each: dict(counts) for each, counts in came.items()})
        if lost and lost[0].sender == engine.origin.rank:
            logger.warning(
                "communicator %r ends with unreceived messages: %s",
                engine.name,
                in_words(lost, engine.origin),
            )

    def _raised_at_end(self, error: CommunicationError) -> bool:
        """Return whether the failure of `end` concerns this rank, and not only a call that others have left."""
        failure = self._engine.gate.error
        if isinstance(error, CommunicatorAborted) and failure is not None:
            cause = failure.__cause__
            # A call of this rank has failed, or a mismatch was found.
            own = isinstance(cause, CommunicationError) and cause.sequence is not None
            return own or isinstance(cause, RankMismatch)
        late = (error.elapsed or 0.0) >= self._engine.timeout
        return late and isinstance(error, CollectiveTimeout)

    # The agreement.

    def _on_current(self, label: CallFingerprint, *how: Any) -> Result[list[bytes] | None]:
        """Return the steps of `agree` for the call that was begun last."""
        engine = self._engine
        return self._agreement(label, engine.number, engine.digest, engine.site, *how)

    def _agreement(
        self,
        label: CallFingerprint,
        number: int,
        digest: int,
        site: recorder.Site | None,
        error: HpccommError | None = None,
        tell: Callable[[], bytes] = bytes,
        more: bool = False,
    ) -> Result[list[bytes] | None]:
        """Return the steps of `agree` for the call that the program makes at `site`."""
        self._engine.compared.append(number)
        compared = 0 if self._setting == CHECK_OFF else digest
        alike, told = yield from self._alike((label.fingerprint, compared, error is not None), more)
        if not alike:
            before = (compared ^ label.fingerprint) & DIGEST if compared else 0
            yield from self._compare(label, number, before, recorder.described(site), error)
        if error is not None:
            raise untied(error)
        if label.individual:
            yield from self.paired(label.individual)
        self._agreed = max(self._agreed, number)
        return (yield from self._control.all_gather_steps(tell())) if told else None

    @cached_property
    def _largest(self) -> Implementation | None:
        return self._engine.backend.native(LARGEST, apart=True)

    def _alike(self, numbers: tuple[int, int, bool], more: bool) -> Result[tuple[bool, bool]]:
        """Return steps whose result tells whether all ranks have the same numbers, and whether a rank has more to tell.

        The library finds the largest numbers, if it can; else the control plane does.
        """
        a, b, c = numbers
        mine = np.array([a, b, c, -a, -b, -c, more], np.int64)
        if self._largest is None:
            yield from self._control.largest_steps(most := mine)
        else:
            most = np.empty_like(mine)
            steps = self._largest.start(mine, most)
            try:
                yield from steps
            except BaseException:  # the call failed, or was abandoned
                keep(steps, mine, most)
                raise
        x, y, z, *least, told = most.tolist()
        return least == [-x, -y, -z], bool(told)

    def paired(self, calls: Sequence[Signature]) -> Steps:
        """Return steps that raise on every rank unless the lists of all ranks fit each other."""
        mine = pairing.balance(pairing.blocks(calls, self._engine.backend.rank))
        if pairing.balanced((yield from self._control.all_gather_steps(mine))):
            return
        everyone = yield from self._exchanged([pairing.exchanged(call) for call in calls])
        for lists in zip(*everyone.values(), strict=True):
            problem = pairing.unpaired([pairing.Exchanged(*each) for each in lists])
            if problem is not None:
                raise RankMismatch(problem[0], ranks=problem[1])

    def _apart(self, label: CallFingerprint, send: View | None, recv: View | None) -> Steps:
        """Return steps that raise on every rank if a rank writes to memory that another rank uses in the same call.

        That is possible if ranks are threads of one process. In a broadcast all ranks may share an array, since all
        write the same data.
        """
        if label.name == "broadcast":
            return
        spans = [(address(each), each.nbytes) for each in (recv, send) if each is not None]
        came = yield from self._exchanged([recv is not None, spans])
        for (one, (writes, mine)), (other, (_, theirs)) in permutations(came.items(), 2):
            if not writes:
                continue
            start, size = mine[0]
            shared = (
                min(start + size, at + length) > max(start, at)
                for at, length in theirs
                if size and length
            )
            if any(shared):
                raise RankMismatch(
                    f"rank {one} writes to memory that rank {other} has in the same call; ranks are threads "
                    "of one process here: give each an array of its own, such as x.copy()",
                    ranks=(one, other),
                )

    def _compare(
        self,
        label: CallFingerprint,
        number: int,
        before: int,
        site: str,
        error: HpccommError | None,
    ) -> Iterator[bool]:
        """Return steps that raise on every rank an error with the call of each rank.

        The call was not made. If the digests `before` differ, earlier calls differed too: then their results are
        undefined, and the communicator fails.
        """
        mine: dict[str, object] = {"record": _record(label), "site": site, "before": before}
        mine["refused"] = self._engine.lately()
        if error is not None:
            mine["error"] = str(error)
        came = yield from self._exchanged(mine)
        wrong = {rank: each["error"] for rank, each in came.items() if "error" in each}
        odd = odd_calls(came)
        if wrong:
            text = "; ".join(f"rank {rank}: {why}" for rank, why in wrong.items())
            mismatch = RankMismatch(
                f"no call was made, since its arguments do not fit on {text}", ranks=tuple(wrong)
            )
        elif odd:
            mismatch = RankMismatch(
                f"the ranks call different things: {side_by_side(came)}"
                f"{refusals({rank: came[rank] for rank in odd})}; "
                "make the same calls in the same order on all ranks",
                ranks=odd,
            )
        else:
            mismatch = yield from self._look_back(number)
        if len({each["before"] for each in came.values()}) > 1:
            self._engine.fail(mismatch)
        if error is None:
            raise mismatch

    def _look_back(self, number: int) -> Result[RankMismatch]:
        """Return the error of ranks whose calls are the same now, but differed before."""
        mine = {
            entry[recorder.NUMBER]: {
                "record": _record(entry[recorder.LABEL]),
                "site": recorder.place(entry),
            }
            for entry in recorder.copied(self._engine.kept)
            if self._agreed < entry[recorder.NUMBER] < number
        }
        histories = yield from self._exchanged(list(mine.items()))
        known = {rank: dict(each) for rank, each in histories.items()}
        first = max((min(each) for each in known.values() if each), default=0)  # all ranks keep it
        since = (
            f"since call {self._agreed}, which they agreed on" if self._agreed else "at some time"
        )
        text, odd = "", tuple[int, ...]()
        for each in sorted(set[int]().union(*known.values())):
            came = {rank: history.get(each, NO_CALL) for rank, history in known.items()}
            if each >= first and (odd := odd_calls(came)):
                text = f"; the first was call {each}: {side_by_side(came)}"
                break
        return RankMismatch(
            f"the ranks make the same call now, but made different ones {since}{text}; "
            "their results are undefined; make the same calls in the same order on all ranks",
            ranks=odd,
        )

    def _exchanged(self, mine: object) -> Result[dict[int, Any]]:
        """Return the steps that exchange plain data, with every rank's contribution, by rank, as the result."""
        payloads = yield from self._control.all_gather_steps(json.dumps(mine).encode())
        try:
            return {rank: json.loads(each) for rank, each in enumerate(payloads)}
        except (
            ValueError
        ):  # for example an object, if this rank or another one left out a call on objects
            engine, why = self._engine, "a message of another call has arrived"
            entry, mismatch = engine.current, RankMismatch(why)
            if entry is not None and entry[recorder.NUMBER] == engine.number:  # this call
                mismatch = engine.failure.unfit(entry, why, ())
            engine.fail(mismatch)
            raise mismatch from None


def odd_calls(came: Mapping[int, Any]) -> tuple[int, ...]:
    """Return the ranks whose record of a call differs from the majority's."""
    return pairing.odd_ones({rank: written(facts["record"]) for rank, facts in came.items()})


def _record(label: CallFingerprint) -> dict[str, object]:
    return {"operation": label.name, **label.values}
