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


def test_defaults() -> None:
    merged = merge("auto", None, None)
    assert (merged.backend, merged.algorithm, merged.self_check) == ("auto", "auto", True)
    assert (merged.timeout, merged.slow_call) == (1800.0, 60.0)
    assert (merged.segment, merged.tuning_file) == (None, "")
    assert merged.hints == {}


def test_keywords_and_options_come_before_variables_and_those_before_defaults(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HPCCOMM_BACKEND", "loopback")
    monkeypatch.setenv("HPCCOMM_TIMEOUT", "inf")
    monkeypatch.setenv("HPCCOMM_SLOW_CALL", "2.5")
    monkeypatch.setenv("HPCCOMM_ALGORITHM", "ring")
    monkeypatch.setenv("HPCCOMM_SEGMENT", "4096")
    merged = merge("auto", None, None)
    assert (merged.backend, merged.algorithm, merged.segment) == ("loopback", "ring", 4096)
    assert (merged.timeout, merged.slow_call) == (math.inf, 2.5)
    options = CommOptions(
        slow_call=math.inf, algorithm="auto", segment=64, self_check=False, hints={"a": "b"}
    )
    merged = merge("mpi", 3, options)
    assert merged.segment == 64
    assert (merged.backend, merged.algorithm, merged.self_check) == ("mpi", "auto", False)
    assert (merged.timeout, merged.slow_call) == (3.0, math.inf)
    assert merged.hints == {"a": "b"}


def test_what_is_asked_for_by_keyword_does_not_read_its_variable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HPCCOMM_TIMEOUT", "soon")
    assert merge("mpi", 3.0, None).timeout == 3.0


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("HPCCOMM_TIMEOUT", "soon"),
        ("HPCCOMM_TIMEOUT", "0"),
        ("HPCCOMM_TIMEOUT", "-1"),
        ("HPCCOMM_TIMEOUT", "nan"),
        ("HPCCOMM_SLOW_CALL", "1 s"),
        ("HPCCOMM_SEGMENT", "0"),
        ("HPCCOMM_SEGMENT", "1 MiB"),
        ("HPCCOMM_DEBUG", "maybe"),
        ("HPCCOMM_ABORT_ON_EXCEPTION", "2"),
    ],
)
def test_a_text_that_does_not_fit(monkeypatch: pytest.MonkeyPatch, name: str, text: str) -> None:
    monkeypatch.setenv(name, text)
    with pytest.raises(ConfigurationError, match=f"{name} is '{text}'; give "):
        read(name)


@pytest.mark.parametrize(
    ("text", "value"), [("1", True), ("Yes", True), (" on ", True), ("0", False), ("FALSE", False)]
)
def test_switches(monkeypatch: pytest.MonkeyPatch, text: str, value: bool) -> None:
    monkeypatch.setenv("HPCCOMM_DEBUG", text)
    assert read("HPCCOMM_DEBUG") is value


def test_an_empty_variable_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HPCCOMM_TIMEOUT", "")
    assert read("HPCCOMM_TIMEOUT") == 1800.0


@pytest.mark.parametrize("timeout", [0, -1.0, math.nan, "5", True])
def test_a_timeout_that_does_not_fit(timeout: object) -> None:
    with pytest.raises(UsageError, match=r"timeout is .*; give seconds above 0"):
        merge("auto", timeout, None)


@pytest.mark.parametrize("backend", ["", None, 3])
def test_a_backend_that_is_no_name(backend: object) -> None:
    with pytest.raises(UsageError, match="backend is"):
        merge(backend, None, None)


@pytest.mark.parametrize(
    "wrong",
    [{"slow_call": 0}, {"hints": {"a": 1}}, {"hints": {1: "a"}}, {"slow_call": math.nan}],
    ids=str,
)
def test_options_that_do_not_fit(wrong: dict[str, object]) -> None:
    with pytest.raises(UsageError, match=r"options\."):
        CommOptions(**wrong)


@pytest.mark.parametrize(
    "again",
    [
        lambda x: pickle.loads(pickle.dumps(x)),
        copy.deepcopy,
        lambda x: type(x)(**dataclasses.asdict(x)),
    ],
    ids=["pickle", "deepcopy", "asdict"],
)
@pytest.mark.parametrize("given", [{}, {"segment": 1024, "hints": {"a": "b"}}])
def test_options_can_be_copied_and_sent_to_other_processes(given, again) -> None:
    options = CommOptions(**given)
    assert again(options) == options


def test_options_of_another_kind() -> None:
    with pytest.raises(UsageError, match=r"give a hpccomm\.CommOptions"):
        merge("auto", None, {"self_check": False})


def test_an_unknown_variable_names_the_nearest(caplog: pytest.LogCaptureFixture) -> None:
    given = {"HPCCOMM_TIME_OUT": "3", "HPCCOMM_TIMEOUT": "3", "HPCCOM_X": "", "PATH": ""}
    with caplog.at_level(logging.WARNING, "hpccomm"):
        assert warn_of_unknown(given) == ["HPCCOMM_TIME_OUT"]
    assert caplog.messages == [
        "HPCCOMM_TIME_OUT is not a setting of hpccomm; did you mean HPCCOMM_TIMEOUT? "
        "Its documentation lists them under Settings"
    ]


def test_a_variable_that_is_like_none_names_none(caplog: pytest.LogCaptureFixture) -> None:
    # Of the beginning alone, which all have, nobody would think that another one was meant.
    given = dict.fromkeys(["HPCCOMM_FOO", "HPCCOMM_MY_JOB", "HPCCOMM_"], "")
    with caplog.at_level(logging.WARNING, "hpccomm"):
        warn_of_unknown(given)
    assert len(caplog.messages) == 3
    assert not [each for each in caplog.messages if "did you mean" in each]
    assert nearest("--foo", ["--op", "--root"]) is None
    assert nearest("--rot", ["--op", "--root"]) == "--root"


def test_every_variable_says_what_it_is() -> None:
    for variable in settings.VARIABLES:
        assert variable.name.startswith("HPCCOMM_")
        assert variable.kind.fits
        assert variable.meaning
        assert read(variable.name) == variable.default


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"maxCTA": 8}, "did you mean maxCTAs"),
        ({"maxCTAs": 0}, "give 1 to 64"),
        ({"maxCTAs": "8"}, "give 1 to 64"),
        ({"netName": 3}, "give IB, Socket"),
        ({"blocking": 0}, "give 1"),
        ({"commName": "a"}, "new_comm(name=)"),
        # NCCL 2.30 init.cc, parseCommConfig: minCTAs > maxCTAs is refused, and what is not set is INT_MIN.
        ({"minCTAs": 8}, "give maxCTAs, of at least 8"),
        ({"minCTAs": 8, "maxCTAs": 4}, "give maxCTAs, of at least 8"),
        ("maxCTAs=8", "give a mapping"),
    ],
)
def test_fields_of_nccls_configuration_that_do_not_fit(given, says) -> None:
    with pytest.raises(UsageError) as caught:
        CommOptions(nccl_config=given)
    assert "nccl_config" in str(caught.value)
    assert says in str(caught.value)


def test_fields_of_nccls_configuration_are_agreed_on() -> None:
    one = merge("mpi", None, CommOptions(nccl_config={"maxCTAs": 8, "minCTAs": True}))
    other = merge("mpi", None, CommOptions(nccl_config={"minCTAs": 1, "maxCTAs": 8}))
    assert one.agreed() == other.agreed()
    assert list(one.agreed()["nccl_config"].items()) == [("maxCTAs", 8), ("minCTAs", 1)]
    assert merge("mpi", None, None).nccl_config == {}
