"""Says who waits for whom, when a call of a recorded program takes too long.

Each rank has a thread that looks at its calls. When one has waited for longer than ``hpccomm record --timeout``, or at
SIGUSR1, that thread makes a folder and writes the dump of its rank into it. The threads of the other ranks see the folder,
and write theirs. The rank that made it joins the dumps, as ``hpccomm explain`` does, and prints the verdict. The main
thread may be anywhere meanwhile. After a timeout the job is ended.

Used by `listening`.
"""

import shutil
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Event
from time import monotonic, sleep

from hpccomm.runtime import dump, recorder
from hpccomm.runtime.reports import traces
from hpccomm.runtime.service import STDERR, start_thread, write_stderr
from hpccomm.tools.programs.ear.calls import Now

LOOK_SECONDS = 0.25
"""How often a rank looks: a look takes some 0.1 ms."""

ANSWER_SECONDS = 2.0
"""How long the rank that asks waits for the dumps of the others."""

QUIET_SECONDS = ANSWER_SECONDS + 1.0
"""What happens so soon after dumps were written is that for which they were: a signal, or a wait."""

MOST_PLACES = 16
"""Most ranks, or groups of ranks in one place, that are printed; ``hpccomm explain`` shows all."""


class Watch:
    """Looks at the calls of this rank, and answers when a rank asks where each one is.

    Parameters
    ----------
    now : Now
        What the program does.
    abort : callable
        Ends all ranks.
    folder : Path
        The folder of dumps that all ranks see. Each question has a folder ``<name><number>`` in it.
    name : str
        The beginning of the names of questions of this job.
    number : int
        The number of the first question.
    timeout : float or None
        Seconds after which a call that waits ends the job; None if none does.
    """

    def __init__(
        self,
        now: Now,
        abort: Callable[[], object],
        folder: Path,
        name: str,
        number: int,
        timeout: float | None,
    ) -> None:
        self._now, self._abort, self._timeout = now, abort, timeout
        self._folder, self._name, self._number = folder, name, number
        self._signal, self._answered = Event(), -QUIET_SECONDS
        start_thread("hpccomm-hang", self._run)
        dump.install(self._signal.set)

    @property
    def _question(self) -> Path:
        return self._folder / f"{self._name}{self._number}"

    @property
    def _last(self) -> Path:
        """Where ranks that have ended leave their dumps."""
        return self._folder / ".ended" / self._name

    def _run(self) -> None:
        # Without a timeout, only another rank's question is looked for.
        pause = LOOK_SECONDS if self._timeout is not None else LOOK_SECONDS * 4
        while not self._now.left:
            asked = self._signal.wait(pause)
            self._signal.clear()
            try:
                if self._question.exists():
                    self._answer("on demand of another rank")
                elif monotonic() < self._answered + QUIET_SECONDS:
                    continue
                elif asked:
                    self._ask("SIGUSR1")
                elif self._timeout is not None and self._now.longest() > self._timeout:
                    self._ask(f"on demand: a call waits for longer than {self._timeout:g} s")
            except Exception as error:  # noqa: BLE001 (the program goes on)
                self._number, self._answered = self._number + 1, monotonic()
                write_stderr(
                    f"hpccomm: rank {dump.process.rank}: where it is could not be written: {error!r}"
                )

    def _answer(self, reason: str) -> None:
        dump.write_to(self._question, reason)
        self._number += 1
        self._answered = monotonic()
        for each in list(traces.values()):
            each.flush()

    def _ask(self, reason: str) -> None:
        """Have all ranks write their dumps, and say what they mean; one rank does it for all."""
        folder, late = self._question, reason.startswith("on demand")
        words = [f"hpccomm: rank {dump.process.rank}: {reason.removeprefix('on demand: ')}"]
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            folder.mkdir()
        except FileExistsError:  # another rank was first
            self._answer(reason)
            return
        except OSError as error:
            words.append(f"where the ranks are cannot be written: {error}")
        else:
            words += self._meaning(folder, reason)
        if late:
            words.append("the job ends, as hpccomm record --timeout says")
        write_stderr(
            "\nhpccomm: ".join(words), getattr(sys.modules.get("sitecustomize"), "stderr", STDERR)
        )
        if late:
            shutil.rmtree(self._last, ignore_errors=True)
            with suppress(OSError):  # another job has its own there
                self._last.parent.rmdir()
            self._now.left = True
            self._abort()

    def _meaning(self, folder: Path, reason: str) -> list[str]:
        """Wait for the dumps of a question, and return what they mean."""
        try:
            self._answer(reason)
            until = monotonic() + ANSWER_SECONDS
            while len(self._gathered(folder)) < dump.process.size and monotonic() < until:
                sleep(0.05)
            words = verdict(folder)
        except Exception as error:  # noqa: BLE001 (it is said, and the job still ends)
            words = [f"what the dumps mean is not known: {error}"]
        return [*words, f"hpccomm explain {folder} says it again, with the last collectives"]

    def _gathered(self, folder: Path) -> list[Path]:
        """Return the dumps of a question, to which those of ranks that have ended are added."""
        for each in self._last.glob("rank_*.json"):
            if not (folder / each.name).exists():
                with suppress(OSError):  # all ranks have ended
                    shutil.copyfile(each, folder / each.name)
        return list(folder.glob("rank_*.json"))

    def leave(self) -> None:
        """Note that the program has come to its end. With a timeout, other ranks may have to know."""
        if self._now.left:
            return
        self._now.left = True
        if self._timeout is None:
            return
        error = getattr(sys, "last_value", None)
        if error is not None:
            site = recorder.site_of_traceback(error.__traceback__)
            dump.process.raised = recorder.mishap(error, site).facts()
        with suppress(OSError):
            dump.write_to(self._last, "the program has come to its end")
            if len(list(self._last.iterdir())) == dump.process.size:
                shutil.rmtree(self._last, ignore_errors=True)
                self._last.parent.rmdir()
                self._folder.rmdir()  # unless a question was asked


def first_question(folder: Path, name: str) -> int:
    """Return the number of the first question of a job that no earlier job of its name has asked. Of one rank."""
    shutil.rmtree(folder / ".ended" / name, ignore_errors=True)
    number = 1
    while (folder / f"{name}{number}").exists():
        number += 1
    return number


def verdict(folder: Path) -> list[str]:
    """Return what the dumps of a folder mean, and where each rank was, as lines."""
    from hpccomm.tools.explain.dumps import read_folder
    from hpccomm.tools.explain.explain import places
    from hpccomm.tools.explain.explain import verdict as conclude
    from hpccomm.tools.explain.faults import find
    from hpccomm.tools.explain.job import join

    job = join(read_folder(folder).dumps)
    return [*conclude(job, find(job)), *places(job, MOST_PLACES)]
