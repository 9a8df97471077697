"""Checks of keys, durations, URLs, labels and options; and that the core does no I/O."""

from __future__ import annotations

import ast
import math
import os
import ssl
from datetime import timedelta
from decimal import Decimal
from pathlib import Path

import pytest
import ticketing
from ticketing import InvalidArgumentError
from ticketing._core import arguments
from ticketing._core.urls import Endpoint, parse_address, parse_url
from ticketing._options import Options, TlsOptions, __version__

SRC = Path(ticketing.__file__).parent
MAX_MS = 4_294_967_294


def test_core_does_no_io() -> None:
    """The core imports nothing with which it could read a clock, a socket or a random source."""
    forbidden = {
        *("asyncio", "socket", "os", "time", "random", "secrets", "threading", "select"),
        *("selectors", "subprocess", "ssl", "logging", "io", "sys", "uuid", "datetime.datetime"),
    }
    for path in [*SRC.glob("_core/*.py"), SRC / "errors.py", SRC / "events.py"]:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or "", *(f"{node.module}.{a.name}" for a in node.names)]
            for name in names:
                assert name.split(".")[0] not in forbidden, f"{path.name} imports {name}"
                assert name not in forbidden, f"{path.name} imports {name}"


def test_files_are_short() -> None:
    for path in SRC.rglob("*.py"):
        if not path.name.endswith("_gen.py"):
            assert len(path.read_text("utf-8").splitlines()) <= 600, path.name


@pytest.mark.parametrize("key", ["", b"", "x" * 129, "é" * 65, "\ud800", None, 5, bytearray(b"k")])
def test_bad_keys(key: object) -> None:
    """REQ-ARGS-KEY"""
    with pytest.raises(InvalidArgumentError, match="key"):
        arguments.wire_key(key)  # type: ignore[arg-type]


def test_good_keys() -> None:
    """REQ-ARGS-KEY REQ-ARGS-TEXT: bytes of any value, text as UTF-8, never normalised."""
    assert arguments.wire_key(b"\0\n \xff") == b"\0\n \xff"
    assert arguments.wire_key("e\u0301") != arguments.wire_key("\u00e9")
    assert len(arguments.wire_key("x" * 128)) == 128
    assert arguments.wire_key("x" * 100, b"p" * 28) == b"p" * 28 + b"x" * 100
    with pytest.raises(InvalidArgumentError, match="129 bytes with its prefix"):
        arguments.wire_key("x" * 101, b"p" * 28)


def test_sets() -> None:
    """REQ-ARGS-SET REQ-ARGS-SETSIZE"""
    assert arguments.wire_set(["b", b"\xff", "a", b"b"]) == [
        (b"a", "a"),
        (b"b", "b"),
        (b"\xff", b"\xff"),
    ]
    assert len(arguments.wire_set(f"k{n}" for n in range(16))) == 16
    for bad in ([], (f"k{n}" for n in range(17)), "text", b"bytes", 5, ["a", ""]):
        with pytest.raises(InvalidArgumentError):
            arguments.wire_set(bad)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "ms"),
    [
        (1, 1000),
        (1.0, 1000),
        (0.001, 1),
        (0.0010000001, 1),  # nearest nanosecond first
        (0.001000001, 2),
        (0.0000000006, 1),
        (4_294_967.294, MAX_MS),
        (timedelta(days=1, microseconds=1), 86_400_001),
        (timedelta(milliseconds=5), 5),
        (0.1 + 0.2, 300),
    ],
)
def test_durations(given: float, ms: int) -> None:
    """REQ-ARGS-ROUND"""
    assert arguments.lease_ms(given) == ms
    assert arguments.wait_ms(given) == ms


@pytest.mark.parametrize(
    "given",
    [
        *(-1, -0.0000000001, math.nan, math.inf, -math.inf, 4_294_967.295, 10**30),
        *("1", True, Decimal(1), timedelta(milliseconds=-1), timedelta(days=50)),
        *([1], {}, bytearray(b"1")),
        pytest.param(10**5000, id="huge"),
        pytest.param(-(10**5000), id="huge and negative"),
    ],
)
def test_bad_durations(given: object) -> None:
    """REQ-ARGS-DURATION"""
    with pytest.raises(InvalidArgumentError, match="lease"):
        arguments.lease_ms(given)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="wait_timeout"):
        arguments.wait_ms(given)  # type: ignore[arg-type]


def test_zero() -> None:
    """REQ-ARGS-TRY REQ-ARGS-DURATION"""
    assert arguments.wait_ms(0) == arguments.wait_ms(timedelta(0)) == 0
    for zero in (0, 0.0, timedelta(0), 1e-12):
        with pytest.raises(InvalidArgumentError, match="at least a millisecond"):
            arguments.lease_ms(zero)


@pytest.mark.parametrize(
    ("url", "endpoints", "tls"),
    [
        ("ticketing://h:1", [Endpoint("h", 1)], False),
        ("ticketing://h", [Endpoint("h", 5225)], False),
        ("ticketing://h:1,[::1]:2,[fe80::1%eth0],1.2.3.4", None, False),
        ("TICKETINGS://h:1/", [Endpoint("h", 1)], True),
        ("ticketing+unix:///run/t%20x.sock", [Endpoint(path="/run/t x.sock")], False),
        ("ticketing://h:1,h:1", [Endpoint("h", 1)], False),
    ],
)
def test_urls(url: str, endpoints: list[Endpoint] | None, tls: bool) -> None:
    """REQ-URL-FORMS"""
    target = parse_url(url)
    assert target.tls == tls
    if endpoints is None:
        assert [str(e) for e in target.endpoints] == [
            *("h:1", "[::1]:2", "[fe80::1%eth0]:5225", "1.2.3.4:5225"),
        ]
    else:
        assert list(target.endpoints) == endpoints


@pytest.mark.parametrize(
    "url",
    [
        *("", "h:1", "http://h:1", "ticketing://", "ticketing://h:0", "ticketing://h:65536"),
        *("ticketing://h:x", "ticketing://[::1", "ticketing://::1:5", "ticketing://h:1,"),
        *("ticketing://h:1/path", "ticketing://h:1?x=1", "ticketing+unix://"),
        *("ticketing+unix://x/y", "ticketing://[h]:1", "ticketing://h h:1"),
        *("ticketing://h:\u0661", None, 5),
    ],
)
def test_bad_urls(url: str) -> None:
    """REQ-URL-FORMS"""
    with pytest.raises(InvalidArgumentError, match="URL"):
        parse_url(url)


def test_paths_that_no_socket_can_have_are_refused() -> None:
    """REQ-URL-FORMS"""
    assert parse_url("ticketing+unix:///" + "x" * 106).endpoints[0].path == "/" + "x" * 106
    with pytest.raises(InvalidArgumentError, match="107"):
        parse_url("ticketing+unix:///" + "x" * 107)


def test_urls_with_a_password_are_refused_without_repeating_it() -> None:
    """REQ-URL-SECRET"""
    with pytest.raises(InvalidArgumentError, match="TICKETING_SECRET") as refusal:
        parse_url("ticketing://user:hunter2@h:1")
    assert "hunter2" not in str(refusal.value)
    for url in ("tickets://user:hunter2@h:1", "user:hunter2@h:1"):
        with pytest.raises(InvalidArgumentError) as refusal:
            parse_url(url)
        assert "hunter2" not in str(refusal.value)


def test_addresses_of_leaders() -> None:
    assert parse_address("[::1]:7") == Endpoint("::1", 7)
    for bad in ("h", "", ":1", "h:", "[x]:1", "h:1:2"):
        assert parse_address(bad) is None


def test_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """REQ-URL-DEFAULT REQ-URL-SECRET REQ-BYTES-LABEL: options first, then the environment."""
    for name in ("URL", "SECRET", "NAME"):
        monkeypatch.delenv(f"TICKETING_{name}", raising=False)
    settings = Options().core_settings()
    assert settings.endpoints == (Endpoint("127.0.0.1", 5225),)
    assert settings.secret == b""
    assert f":{os.getpid()};python/{__version__}".encode() in settings.label
    monkeypatch.setenv("TICKETING_URL", "ticketing://env:9")
    monkeypatch.setenv("TICKETING_SECRET", "env secret")
    monkeypatch.setenv("TICKETING_NAME", "env name")
    settings = Options().core_settings()
    assert settings.endpoints == (Endpoint("env", 9),)
    assert settings.secret == b"env secret"
    assert settings.label == f"env_name;python/{__version__}".encode()
    settings = Options(url="ticketing://arg:1", secret=b"arg", name="arg").core_settings()
    assert settings.endpoints == (Endpoint("arg", 1),)
    assert settings.secret == b"arg"
    assert settings.label.startswith(b"arg;")


def test_labels() -> None:
    """REQ-BYTES-LABEL"""
    label = arguments.make_label("é x\t" + "n" * 100, "0.1.0")
    assert label.startswith(b"__x_nnn")
    assert label.endswith(b"n;python/0.1.0")
    assert len(label) == 64
    assert Options(label="as;given/1").core_settings().label == b"as;given/1"
    for bad in ("", "a b", "é", "x" * 65, b"\x7f", 5):
        with pytest.raises(InvalidArgumentError, match="label"):
            Options(label=bad).core_settings()  # type: ignore[arg-type]


def test_identity() -> None:
    """REQ-BYTES-CLIENTID"""
    one, two = Options().core_settings(), Options().core_settings()
    assert one.client_id != two.client_id
    assert one.seed != two.seed
    assert len(one.seed) == 16
    fixed = Options(client_id=7, seed=bytes(16))
    assert fixed.core_settings().client_id == 7
    assert fixed.core_settings(forked=True).client_id != 7
    assert fixed.core_settings(forked=True).seed != bytes(16)


@pytest.mark.parametrize(
    "option",
    [
        {"client_id": -1},
        {"client_id": 2**64},
        {"client_id": True},
        {"seed": b"short"},
        {"secret": "a\nb"},
        {"secret": b"\0"},
        {"secret": "x" * 1025},
        {"secret": "\ud800"},
        {"secret": 5},
        {"key_prefix": "x" * 128},
        {"key_prefix": 5},
        {"lease": 0},
        {"wait_timeout": -1},
        {"connect_for": math.nan},
        {"reply_timeout": 0},
        {"auto_extend": 1},
        {"release_on_close": "no"},
        {"release_on_close": None},
        {"on_event": 5},
        {"lease": [1]},
        {"reply_timeout": {}},
        {"fingerprint": "zz"},
        {"fingerprint": b"short"},
        {"name": 5},
        {"url": "nonsense"},
        {"tls": TlsOptions()},
        {"tls": ssl.create_default_context()},
        {"url": "ticketings://h", "tls": "yes"},
        {"url": "ticketings://h", "tls": TlsOptions(ca_file="/nowhere")},
        {"url": "ticketings://h", "tls": TlsOptions(key_file=__file__)},
        {"url": "ticketings://h", "tls": TlsOptions(cert_file=__file__)},
        {"url": "ticketings://h", "tls": TlsOptions(ca_file=__file__)},
    ],
)
def test_bad_options_are_refused_at_once(option: dict) -> None:
    """Without a server, before anything is opened, naming what was wrong."""
    with pytest.raises(InvalidArgumentError) as refusal:
        ticketing.connect(**option)
    assert isinstance(refusal.value, ValueError)
    word = next(name for name in reversed(option))
    assert word in str(refusal.value).replace("URL", "url").replace("key ", "key_prefix ")


def test_text_from_elsewhere_is_shown_harmlessly() -> None:
    """REQ-HOSTILE-TEXT"""
    assert arguments.sanitised(b"ok \x1b[31m\n\xff~") == "ok ?[31m??~"


def test_errors_form_one_tree() -> None:
    """REQ-ERROR-KINDS"""
    from ticketing.errors import ERRORS_BY_KIND

    assert set(ERRORS_BY_KIND) == {
        *("timeout", "held", "auth", "invalid_argument", "overloaded", "not_held", "lost"),
        *("closed", "protocol", "connection"),
    }
    for kind, error in ERRORS_BY_KIND.items():
        assert issubclass(error, ticketing.TicketingError)
        assert error("text").kind == kind
        assert str(error("text")) == "text"
    assert issubclass(ticketing.HeldError, ticketing.WaitTimeoutError)
    for error in (ticketing.WaitTimeoutError, ticketing.ReplyTimeoutError):
        assert issubclass(error, TimeoutError)
    assert issubclass(ticketing.ConnectionFailedError, ConnectionError)
    assert ticketing.ReplyTimeoutError("x").kind == "connection"
