"""`hpccomm explain` on the dumps of real ranks."""

import weakref
from pathlib import Path

import numpy as np

import hpccomm
from hpccomm.runtime import recorder
from hpccomm.testing import run_ranks
from hpccomm.tools.explain.dumps import read_folder
from hpccomm.tools.main import main


def test_what_is_written_is_what_is_read(tmp_path: Path) -> None:
    with hpccomm.new_comm(backend="loopback", name="alone") as comm:
        comm.all_reduce(np.ones(3))
        comm.barrier()
        hpccomm.dump(tmp_path, reason="to look at it")
    folder = read_folder(tmp_path)
    assert folder.passed_over == ()
    (dump,) = folder.dumps
    assert dump.reason == "to look at it"
    group = next(each for each in dump.groups.values() if each.name == "alone")
    assert group.members == (0,)
    reduced, met = [call for call in dump.calls if call.uid == group.uid][-2:]
    assert (reduced.operation, met.operation) == ("all_reduce", "barrier")
    assert met.number == reduced.number + 1 == dump.answers[group.uid][0].facts["collective"]
    assert reduced.state == met.state == "completed"
    assert reduced.site.startswith("test_what_is_written_is_what_is_read(), test_real_job.py line ")
    assert 0 <= dump.time - reduced.began < 600
    assert reduced.seconds is not None


def test_a_process_of_several_ranks_dumps_the_communicators_of_its_rank(tmp_path: Path) -> None:
    """Making groups counts alike on all ranks, so that numbers of collectives can be compared."""

    def main(comm: hpccomm.Communicator) -> None:
        counted = comm.dup(name="counted")
        parts = comm.split(min(comm.rank, 1)), counted.split_ranks([0, 2], name="two")
        counted.split(None if comm.rank == 1 else 0)
        counted.barrier()
        if comm.rank == 0:
            hpccomm.dump(tmp_path)
        comm.barrier()
        parts[0].finalize()

    run_ranks(3, main)
    (dump,) = read_folder(tmp_path).dumps
    assert dump.rank == 0
    assert all(0 in group.members for group in dump.groups.values())
    members = {group.name: group.members for group in dump.groups.values()}
    assert members["two"] == (0, 2), "they are ranks of the job, not of the group"
    made = [call for call in recorder.calls() if call[recorder.ORIGIN].name == "counted"]
    last = {call[recorder.ORIGIN].rank: call[recorder.NUMBER] for call in made}
    assert last == dict.fromkeys(range(3), last[0])


def test_a_rank_is_in_its_program_even_where_that_waits_in_the_standard_library() -> None:
    # finalize() is a function of weakref.py, from which `doing` is called.
    where = weakref.finalize(main, recorder.doing)()
    assert where.startswith("test_a_rank_is_in_its_program_even_where_that_waits_in_the")
    assert "(), test_real_job.py line " in where
