"""Starts the recording of a program's calls on mpi4py, and knows its communicators, windows and files.

The recording is the one that `hpccomm.communicator.recording` makes: each rank writes its part, and readers join them.
It begins when MPI has started, and ends when the program finalises MPI or ends. Calls of hpccomm in the same program
are recorded beside these.

Used by `classes`.
"""

import os
from collections import Counter
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from threading import main_thread
from time import perf_counter
from types import CodeType, FrameType, ModuleType
from typing import Any

from hpccomm import settings
from hpccomm.backends.bootstrap import launch, libmpi
from hpccomm.communicator.recording import PartRecorder, end_status, facts_now
from hpccomm.errors import ResultsError
from hpccomm.results import facts
from hpccomm.runtime import dump, recorder
from hpccomm.runtime.recorder import (
    BEGIN,
    ENDED,
    ERROR,
    LABEL,
    PACKAGE,
    CallRecord,
    Trace,
    in_words,
    of_program,
    own_frame,
    site_of,
)
from hpccomm.runtime.reports import traces
from hpccomm.runtime.service import ExitStep, Status, after_fork, at_exit, write_stderr
from hpccomm.tools.programs.ear import hang
from hpccomm.tools.programs.ear.calls import HeardGroup, Now, Open, ranks_of
from hpccomm.tools.programs.prices import measured


class WorldRanks:
    """The ranks of the job, as `PartRecorder` asks for them, on a communicator that the program does not have."""

    def __init__(self, comm: Any) -> None:
        self.rank, self.size = comm.rank, comm.size
        self.all_gather_object = comm.allgather
        self.send, self.recv = comm.Send, comm.Recv


class Ear:
    """Records the calls of one process on mpi4py.

    Attributes
    ----------
    trace : Trace or None
        Takes the calls; None before MPI has started and after the end.
    hears : bool
        Whether calls are noted: they are recorded, or a hang is to be explained.
    ends_waits : bool
        Whether calls have a deadline.
    packed : dict of int to int
        Bytes that each thread has pickled and unpickled so far.
    now : Now
        What the program does.
    """

    def __init__(self, mpi: ModuleType) -> None:
        self.trace: Trace | None = None
        self.hears, self.ends_waits = False, False
        self.packed: dict[int, int] = {}
        self.now = Now()
        self._watch: hang.Watch | None = None
        self._mpi = mpi
        self._groups: dict[int | None, HeardGroup] = {}
        self._made: Counter[tuple[int, ...]] = Counter()
        self._named: Counter[str] = Counter()
        self._places: dict[int, tuple[int, CodeType]] = {}
        self._own: PartRecorder | None = None

    # The start and the end.

    def start(self, world: Any) -> None:
        """Begin to record. Collective over `world`, all ranks of the job; blocks."""
        path = settings.read("HPCCOMM_RECORDING")
        timeout: Any = settings.read("HPCCOMM_RECORD_TIMEOUT")
        if self.hears or traces or not (path or timeout):
            return
        for name in ("HPCCOMM_RECORDING", "HPCCOMM_RECORD_TIMEOUT"):
            os.environ.pop(name, None)  # programs that it starts are not recorded
        comm, here = WorldRanks(private := world.Dup()), dump.process
        here.rank, here.size, here.job = comm.rank, comm.size, launch.job_name()
        if path:
            self._record(comm, private, Path(str(path)))
        if self.trace is None and timeout is None:
            return
        self.group(world)
        folder = Path(f"{path}.dumps" if path else dump.DIRECTORY).absolute()
        name, number = f"{here.job or 'job'}-", 0
        try:
            number = hang.first_question(folder, name) if comm.rank == 0 else 0
        except OSError as error:
            write_stderr(f"hpccomm: hangs are not explained: {error}")
        if number := private.bcast(number):
            self._watch = hang.Watch(self.now, self.abort, folder, name, number, timeout)
            self.ends_waits = timeout is not None
        self.hears = True
        at_exit(ExitStep.CALLERS, self.end)
        after_fork(self._forked)

    def _record(self, comm: WorldRanks, private: Any, path: Path) -> None:
        """Begin to record to a file. Collective; where that cannot be, rank 0 says why."""
        about = facts_now(tuple(comm.all_gather_object(facts.host())), self._mpi)
        about = replace(about, machine={**about.machine, **measured(private)})
        main = main_thread().ident
        try:
            self._own = PartRecorder(comm, path, private.bcast(about), thread=main)
        except ResultsError as error:
            if comm.rank == 0:
                write_stderr(f"hpccomm: the program is not recorded: {error}")
            return
        self._own.speaks, self.trace = True, self._own.trace

    def end(self, status: str = "") -> None:
        """Write what is left of this rank's part. Local; idempotent."""
        self.hears, self.trace = False, None
        if self._watch is not None:
            self._watch.leave()
        if self._own is not None:
            self._own.leave(status or end_status())

    def _forked(self) -> None:
        """Leave the parent's files alone: this is a child."""
        self.hears, self.trace, self._watch = False, None, None

    def abort(self) -> None:
        """End all ranks."""
        self.end("failed: a call waited for longer than the timeout")
        libmpi.abort(self._mpi, Status.ENDED)
        os._exit(Status.ENDED)

    # Where a call is made, and by whom.

    def site(self, frame: FrameType) -> recorder.Site | None:
        """Return where the program makes a call; None if hpccomm makes it, or nothing is recorded."""
        if not self.hears:
            return None
        code = frame.f_code
        found = self._places.get(id(code))  # the hash of a code takes a quarter of a microsecond
        if found is None:
            file = code.co_filename
            kind = 0 if file.startswith(PACKAGE) else 1 if of_program(file) else 2
            found = self._places[id(code)] = kind, code
        if found[0] == 1:
            return code, frame.f_lasti
        return site_of(own_frame(frame) or frame) if found[0] else None

    def group(self, handle: Any, *, made: str = "", like: HeardGroup | None = None) -> HeardGroup:
        """Return the group of a communicator, window or file.

        Parameters
        ----------
        handle : Comm, Win or File
            Of mpi4py; None while it is being made.
        made : str
            Its name, if it has just been made: then earlier ones with this handle are gone.
        like : HeardGroup, optional
            The group whose ranks it has, if these cannot be asked for.
        """
        key = getattr(handle, "handle", None)
        found = None if made else self._groups.get(key)
        if found is None:
            found = self._groups[key] = self._new(handle, made, like)
        if hasattr(handle, "_hpccomm_group"):  # others are of mpi4py's own class
            handle._hpccomm_group = found  # noqa: SLF001
        return found

    def forget(self, group: HeardGroup) -> None:
        """Forget a group that has ended: its handle may become that of another."""
        for key in [key for key, each in self._groups.items() if each is group]:
            del self._groups[key]

    def _new(self, handle: Any, name: str, like: HeardGroup | None) -> HeardGroup:
        mpi, inter = self._mpi, getattr(handle, "is_inter", False)
        if like is not None:
            members = like.members
        else:
            sides = [handle.Get_group(), *([handle.Get_remote_group()] if inter else [])]
            members = tuple(sum(sorted(ranks_of(mpi, each) for each in sides), ()))
            for each in sides:
                each.Free()
        number = self._made[members]
        self._made[members] += 1
        whole = members == tuple(range(mpi.COMM_WORLD.size))
        which = blake2b(repr(members).encode(), digest_size=8).hexdigest()
        uid = f"mpi {'all' if whole else which} {number}"
        name = name or getattr(handle, "Get_name", str)() or uid
        self._named[name] += 1
        name = name if self._named[name] == 1 else f"{name}, {self._named[name]}"
        group = HeardGroup(uid, name, members, members.index(mpi.COMM_WORLD.rank), self.now)
        group.matched = like.matched if like else not inter
        return group

    def failed(self, entry: CallRecord, error: BaseException) -> None:
        """Note that a call has raised."""
        entry[ERROR], entry[ENDED] = in_words(error), perf_counter() - entry[BEGIN]
        if self.trace is not None:
            self.trace.take(entry, None)

    def over(self, call: Open, asked: float, status: Any, nbytes: int, value: Any) -> None:
        """Note that an asynchronous call is over, which the program has asked for since a moment."""
        entry, labels = call.entry, call.labels
        assert entry is not None
        asked_for = call.asked  # which the next start of a persistent call needs as it is
        if status is not None and labels.open(asked_for):
            asked_for = labels.come(asked_for, status)
        if labels.pickles and not labels.value:
            asked_for = labels.pickled(asked_for, nbytes, value)
        entry[LABEL] = labels.of(asked_for)
        entry[ENDED] = perf_counter() - entry[BEGIN]
        if self.trace is not None:
            self.trace.waited(entry, asked)
