"""The watchdog ends what outlives its deadline, once, and holds on to nothing."""

import gc
import threading
import time
import weakref

from hpccomm.runtime.watchdog import LOOK_SECONDS, Station, beside, watch


def test_a_call_that_outlives_its_deadline_ends_the_job_once(capfd) -> None:
    ended: list[str] = []
    over = threading.Event()

    def end_job(why: str) -> None:
        ended.append(why)
        over.set()

    station = Station(lambda: "a call", end_job)
    watch(station)
    with beside(station, 0.05):
        assert over.wait(10)
        time.sleep(3 * LOOK_SECONDS)
    assert ended == ["a blocked call outlived its deadline"]
    told = capfd.readouterr().err
    assert "a call has been blocked" in told
    assert "its deadline is 0.05 s" in told
    assert "test_watch.py" in told  # where it is blocked


def test_a_call_within_its_deadline_ends_nothing() -> None:
    ended: list[str] = []
    station = Station(lambda: "a call", ended.append)
    watch(station)
    with beside(station, 60.0):
        time.sleep(2 * LOOK_SECONDS)
    time.sleep(2 * LOOK_SECONDS)
    assert ended == []


def test_a_station_may_go() -> None:
    station = Station(lambda: "a call", lambda _: None)
    watch(station)
    gone = weakref.ref(station)
    time.sleep(2 * LOOK_SECONDS)
    del station
    gc.collect()
    assert gone() is None
