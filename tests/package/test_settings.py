"""One spelling for each setting: keyword, then option, then variable, then default."""

import copy
import dataclasses
import logging
import math
import pickle

import pytest

from hpccomm import settings
from hpccomm.errors import ConfigurationError, UsageError, nearest
from hpccomm.settings import CommOptions, merge, read, warn_of_unknown


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in settings.VARIABLES:
        monkeypatch.delenv(variable.name, raising=False)


def test_keywords_and_options_come_before_variables_and_those_before_defaults(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = "backend algorithm timeout slow_call segment self_check tuning_file hints nccl_config"

    def merged(*given: object) -> list[object]:
        found = merge(*given)
        return [getattr(found, name) for name in names.split()]

    assert merged("auto", None, None) == ["auto", "auto", 1800.0, 60.0, None, True, "", {}, {}]
    given = "BACKEND=loopback TIMEOUT=inf SLOW_CALL=2.5 ALGORITHM=ring SEGMENT=4096"
    for name, text in (each.split("=") for each in given.split()):
        monkeypatch.setenv(f"HPCCOMM_{name}", text)
    by_variables = ["loopback", "ring", math.inf, 2.5, 4096, True, "", {}, {}]
    assert merged("auto", None, None) == by_variables
    how = {"slow_call": math.inf, "algorithm": "auto", "self_check": False}
    options = CommOptions(**how, segment=64, hints={"a": "b"})
    monkeypatch.setenv("HPCCOMM_TIMEOUT", "soon")  # not read where a keyword is given
    by_options = ["mpi", "auto", 3.0, math.inf, 64, False, "", {"a": "b"}, {}]
    assert merged("mpi", 3, options) == by_options


REFUSED = "TIMEOUT=soon,TIMEOUT=0,TIMEOUT=-1,TIMEOUT=nan,SLOW_CALL=1 s,SEGMENT=0,SEGMENT=1 MiB"
REFUSED += ",DEBUG=maybe,ABORT_ON_EXCEPTION=2"


def test_the_text_of_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text, value in (
        ("HPCCOMM_TIMEOUT", "", 1800.0),
        *(("HPCCOMM_DEBUG", text, True) for text in ("1", "Yes", " on ")),
        *(("HPCCOMM_ABORT_ON_EXCEPTION", text, False) for text in ("0", "FALSE")),
    ):
        monkeypatch.setenv(name, text)
        assert read(name) == value
    for name, text in (f"HPCCOMM_{each}".split("=") for each in REFUSED.split(",")):
        monkeypatch.setenv(name, text)
        with pytest.raises(ConfigurationError, match=f"{name} is '{text}'; give "):
            read(name)


def test_a_value_that_does_not_fit() -> None:
    for timeout in (0, -1.0, math.nan, "5", True):
        with pytest.raises(UsageError, match=r"timeout is .*; give seconds"):
            merge("auto", timeout, None)
    for backend in ("", None, 3):
        with pytest.raises(UsageError, match="backend is"):
            merge(backend, None, None)
    for name, value in (
        ("slow_call", 0),
        ("slow_call", math.nan),
        ("hints", {"a": 1}),
        ("hints", {1: "a"}),
    ):
        with pytest.raises(UsageError, match=rf"options\.{name}"):
            CommOptions(**{name: value})
    with pytest.raises(UsageError, match=r"give a hpccomm\.CommOptions"):
        merge("auto", None, {"self_check": False})


@pytest.mark.parametrize("given", [{}, {"segment": 1024, "hints": {"a": "b"}}])
def test_options_can_be_copied_and_sent_to_other_processes(given: dict[str, object]) -> None:
    options = CommOptions(**given)
    assert pickle.loads(pickle.dumps(options)) == options
    assert copy.deepcopy(options) == options
    assert CommOptions(**dataclasses.asdict(options)) == options


def test_an_unknown_variable_names_the_nearest(caplog: pytest.LogCaptureFixture) -> None:
    # Of the beginning alone, which all have, nobody would think that another one was meant.
    unknown = ["HPCCOMM_", "HPCCOMM_FOO", "HPCCOMM_TIME_OUT"]
    given = dict.fromkeys([*unknown, "HPCCOMM_TIMEOUT", "HPCCOM_X", "PATH"], "")
    with caplog.at_level(logging.WARNING, "hpccomm"):
        assert warn_of_unknown(given) == unknown
    *others, told = caplog.messages
    assert told == (
        "HPCCOMM_TIME_OUT is not a setting of hpccomm; did you mean HPCCOMM_TIMEOUT? "
        "Its documentation lists them under Settings"
    )
    assert len(others) == 2
    assert "did you mean" not in " ".join(others)
    assert nearest("--foo", ["--op", "--root"]) is None
    assert nearest("--rot", ["--op", "--root"]) == "--root"


def test_every_variable_says_what_it_is() -> None:
    for variable in settings.VARIABLES:
        assert variable.name.startswith("HPCCOMM_")
        assert variable.kind.fits
        assert variable.meaning
        assert read(variable.name) == variable.default


def test_fields_of_nccls_configuration_that_do_not_fit() -> None:
    for given, says in (
        ({"maxCTA": 8}, "did you mean maxCTAs"),
        ({"maxCTAs": 0}, "give 1 to 64"),
        ({"maxCTAs": "8"}, "give 1 to 64"),
        ({"netName": 3}, "give IB, Socket"),
        ({"blocking": 0}, "give 1"),
        ({"commName": "a"}, r"new_comm\(name=\)"),
        # NCCL 2.30 init.cc, parseCommConfig: minCTAs > maxCTAs is refused, and what is not set is INT_MIN.
        ({"minCTAs": 8}, "give maxCTAs, of at least 8"),
        ({"minCTAs": 8, "maxCTAs": 4}, "give maxCTAs, of at least 8"),
        ("maxCTAs=8", "give a mapping"),
    ):
        with pytest.raises(UsageError, match=f"nccl_config.*{says}"):
            CommOptions(nccl_config=given)  # type: ignore[arg-type]


def test_fields_of_nccls_configuration_are_agreed_on() -> None:
    one = merge("mpi", None, CommOptions(nccl_config={"maxCTAs": 8, "minCTAs": True}))
    other = merge("mpi", None, CommOptions(nccl_config={"minCTAs": 1, "maxCTAs": 8}))
    assert one.agreed() == other.agreed()
    assert list(one.agreed()["nccl_config"].items()) == [("maxCTAs", 8), ("minCTAs", 1)]
