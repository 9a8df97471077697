"""The command against real servers: what it prints, and how it fails."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import ticketing.sync
from ticketing_server.admin.cli import main
from ticketing_server.admin.errors import DISK, DONE, NO_ANSWER, REFUSED, USAGE
from ticketing_server.admin.target import SECRET_FILE_ENV
from ticketing_server.settings_load import ADMIN_ADDRESS_ENV, ADMIN_SECRET_ENV
from ticketing_server.testing import Certificates, ServerThread, make_certificates

SECRET = "a-secret-of-administration"
STATE = r"memory: alone, term 0, index 0, cluster time \d+ms\n"
Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (ADMIN_ADDRESS_ENV, ADMIN_SECRET_ENV, SECRET_FILE_ENV):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def server() -> Iterator[ServerThread]:
    with ServerThread(admin_listen="127.0.0.1:0") as running:
        yield running


def address(server: ServerThread) -> str:
    return server.values("admin-listen")[0]


def output(capsys: Capture, *words: str) -> str:
    """What a command prints that does what it is asked for."""
    code = main(words)
    captured = capsys.readouterr()
    assert (code, captured.err) == (DONE, "")
    return captured.out


def refusal(capsys: Capture, code: int, *words: str) -> str:
    """The one line of a command that does not."""
    assert main(words) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1, captured.err
    assert captured.err.startswith("ticketing-admin: ")
    return captured.err.removeprefix("ticketing-admin: ").rstrip("\n")


def test_status_as_table_and_json(server: ServerThread, capsys: Capture) -> None:
    text = output(capsys, "status", "--address", address(server))
    assert re.fullmatch(
        STATE
        + r"version        \S+ \(python\)\n"
        + r"up             \S+\n"
        + r"draining       no\n"
        + r"tickets        0 of 0 keys\n"
        + r"waiters        0 attached, 0 held back, 0 detached\n"
        + r"longest queue  0\n"
        + r"oldest waiter  0ms\n"
        + r"connections    0\n"
        + r"grants         0\n"
        + r"loop lag       \S+ms\n",
        text,
    )
    status = json.loads(output(capsys, "--json", "--address", address(server), "status"))
    assert status["state"]["mode"] == "memory"
    assert status["tickets"] == 0


def test_lists_page_filter_and_line_up(server: ServerThread, capsys: Capture) -> None:
    at = ("--address", address(server))
    with ticketing.sync.connect(server.url, name="holder") as client:
        tokens = [client.acquire(key).token for key in ("first one", "second")]
        text = output(capsys, "tickets", *at)
        state, head, *rows = text.splitlines()
        assert re.fullmatch(STATE, state + "\n")
        column = head.index("KEYS")
        assert [row[column:] for row in rows] == [r"first\x20one", "second"]
        assert [int(row.split()[0]) for row in rows] == tokens
        assert {row[head.index("NAME") :].split(";")[0] for row in rows} == {"holder"}

        first = output(capsys, "tickets", "--limit", "1", *at)
        assert first.endswith(f"\nthere are more: add --after {tokens[0]}, or --all\n")
        rest = output(capsys, "tickets", "--after", str(tokens[0]), *at)
        assert len(rest.splitlines()) == 3
        everything = json.loads(output(capsys, "tickets", "--all", "--limit", "1", "--json", *at))
        assert [int(t["token"]) for t in everything["tickets"]] == tokens
        assert everything["next_after"] is None
        found = json.loads(output(capsys, "tickets", "--key", r"first\x20one", "--json", *at))
        assert [t["keys"] for t in found["tickets"]] == [[r"first\x20one"]]
        none = output(capsys, "waiters", *at).splitlines()
        assert none[1:] == ["JOINED  STATE  WAITED  LEFT  NAME  PEER  CLIENT  KEYS"]


def test_a_limit_over_a_page_is_fetched_page_by_page(
    server: ServerThread, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ticketing_server.admin.online.PAGE_MAX", 2)
    with ticketing.sync.connect(server.url) as client:
        tokens = [client.acquire(f"k{n}").token for n in range(5)]
        for words, expected in (
            (("--limit", "3"), tokens[:3]),
            (("--all",), tokens),
            (("--limit", "5"), tokens),
        ):
            text = output(capsys, "tickets", "--json", *words, "--address", address(server))
            assert [int(t["token"]) for t in json.loads(text)["tickets"]] == expected


def test_force_release_shows_whose_it_was(server: ServerThread, capsys: Capture) -> None:
    at = ("--address", address(server))
    with ticketing.sync.connect(server.url, name="holder") as client:
        ticket = client.acquire("a b", lease=60)
        lost = threading.Event()
        waiting = threading.Thread(target=lambda: (ticket.wait_lost(), lost.set()), daemon=True)
        waiting.start()
        text = output(capsys, "force-release", "a b", str(ticket.token), *at)
        assert re.fullmatch(
            STATE + r"released:\nTOKEN .*KEYS\n" + rf"{ticket.token} .*holder\S* .*a\\x20b\n", text
        )
        assert lost.wait(60)
        again = refusal(capsys, REFUSED, "force-release", "a b", str(ticket.token), *at)
        assert again == (
            r"nobody holds the key a\x20b; look at: ticketing-admin tickets --key 'a\x20b'"
        )
        text = output(
            capsys, "force-release", r"c\x20d", str(client.acquire("c d").token), "--json", *at
        )
        assert json.loads(text)["released"]["keys"] == [r"c\x20d"]


def test_what_a_server_can_t_do_is_one_line(server: ServerThread, capsys: Capture) -> None:
    at = ("--address", address(server))
    assert refusal(capsys, REFUSED, "transfer", *at) == (
        "this server is no cluster: nobody else can lead"
    )
    assert refusal(capsys, REFUSED, "transfer", "--to", "2", *at).startswith("this server is no")


def test_a_snapshot_that_fails_leaves_no_file(
    server: ServerThread, capsys: Capture, tmp_path: Path
) -> None:
    at = ("--address", address(server))
    assert refusal(capsys, REFUSED, "snapshot", str(tmp_path / "backup"), *at) == (
        "memory mode keeps nothing that a backup could hold; start the server with --data-dir"
    )
    assert list(tmp_path.iterdir()) == []
    there = tmp_path / "there"
    there.write_text("precious")
    assert refusal(capsys, DISK, "snapshot", str(there), *at) == (
        f"{str(there)!a} can't be written (it is there already; name a file that is not); name"
        " another file"
    )
    assert there.read_text() == "precious"
    missing = tmp_path / "missing" / "file"
    assert refusal(capsys, DISK, "snapshot", str(missing), *at).startswith(
        f"{str(missing)!a} can't be written (No such file or directory)"
    )


def test_drain_ends_the_server(server: ServerThread, capsys: Capture) -> None:
    text = output(capsys, "drain", "--address", address(server))
    assert re.fullmatch(STATE + "the server sends its clients on, and ends within 10 s\n", text)
    server.stop()
    assert refusal(capsys, NO_ANSWER, "status", "--address", address(server)).startswith(
        f"no server of administration at {address(server)} (Connection refused); start the server"
        f" with --admin-listen {address(server)}, or name another with --address"
    )


def test_nobody_there_and_somebody_else(server: ServerThread, capsys: Capture) -> None:
    assert refusal(capsys, NO_ANSWER, "status", "--address", "unix:/nowhere") == (
        "no server of administration at unix:/nowhere (No such file or directory); start the"
        " server with --admin-listen unix:/nowhere, or name another with --address"
    )
    clients = ":".join(map(str, server.address))
    assert refusal(capsys, NO_ANSWER, "status", "--address", clients).startswith(
        f"{clients} listens, but is not understood: check that it is the server's --admin-listen,"
        " and add --tls-ca FILE where that speaks TLS; gRPC says: "
    )


def test_secrets_from_file_and_environment(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "secrets"
    path.write_text(f"ops {SECRET}\n")
    with ServerThread(admin_listen="127.0.0.1:0", admin_secret_file=str(path)) as server:
        monkeypatch.setenv(ADMIN_ADDRESS_ENV, address(server))
        assert refusal(capsys, REFUSED, "status") == (
            "this server takes calls with a secret of administration only; try: --secret-file FILE"
            " or TICKETING_ADMIN_SECRET"
        )
        output(capsys, "status", "--secret-file", str(path))
        monkeypatch.setenv(SECRET_FILE_ENV, str(path))
        output(capsys, "status")
        monkeypatch.setenv(ADMIN_SECRET_ENV, "another-secret-of-it")
        assert refusal(capsys, REFUSED, "status") == (
            "the secret is not one of this server's secrets of administration; look at its"
            " --admin-secret-file, and whether it was reloaded (SIGHUP) since"
        )


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


def test_tls_with_and_without_a_certificate_of_its_own(
    certificates: Certificates, capsys: Capture, tmp_path: Path
) -> None:
    c = certificates
    settings = {
        "admin_listen": "127.0.0.1:0",
        "admin_tls_cert": str(c.server_cert),
        "admin_tls_key": str(c.server_key),
        "admin_tls_client_ca": str(c.ca),
    }
    with ServerThread(**settings) as server:
        at = ("status", "--address", address(server))
        own = ("--tls-cert", str(c.client_cert), "--tls-key", str(c.client_key))
        output(capsys, *at, "--tls-ca", str(c.ca), *own)
        output(capsys, *at, "--tls-ca", str(c.ca), *own, "--tls-name", "localhost")
        no_tls = f"no TLS connection to {address(server)}: check that --tls-ca signed"
        assert refusal(capsys, NO_ANSWER, *at, "--tls-ca", str(c.ca)).startswith(no_tls)
        assert refusal(capsys, NO_ANSWER, *at, "--tls", *own).startswith(no_tls)
        wrong_name = ("--tls-ca", str(c.ca), *own, "--tls-name", "elsewhere")
        assert refusal(capsys, NO_ANSWER, *at, *wrong_name).startswith(no_tls)
        assert refusal(capsys, NO_ANSWER, *at).startswith(f"{address(server)} listens, but is not")
        nothing = tmp_path / "nothing.pem"
        assert refusal(capsys, USAGE, *at, "--tls-ca", str(nothing)) == (
            f"--tls-ca: got {str(nothing)!a}, which can't be read (No such file or directory);"
            " takes a file in PEM"
        )
        nothing.write_text("nothing")
        assert refusal(capsys, USAGE, *at, "--tls-ca", str(nothing)) == (
            f"--tls-ca: got {str(nothing)!a}, which is not PEM; takes a file in PEM"
        )


def test_wrong_words_are_one_line(capsys: Capture) -> None:
    assert refusal(capsys, USAGE).startswith("the following arguments are required: COMMAND; try:")
    assert "invalid choice: 'statu'" in refusal(capsys, USAGE, "statu")
    assert refusal(capsys, USAGE, "force-release", "k", "-5").endswith(
        "; try: ticketing-admin force-release --help"
    )
    assert refusal(capsys, USAGE, "status", "--timeout", "soon") == (
        "argument --timeout: got 'soon', takes a duration with its unit (ms, s, m, h, d); try:"
        " ticketing-admin status --help"
    )
    assert refusal(capsys, USAGE, "status", "--address", "here").startswith("--address: got 'here'")


def test_a_server_that_does_not_answer_is_given_up(capsys: Capture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        where = f"127.0.0.1:{silent.getsockname()[1]}"
        text = refusal(capsys, NO_ANSWER, "status", "--address", where, "--timeout", "200ms")
        assert text == (
            f"{where} did not answer within 0.2 s; is the server stopped or busy? try: --timeout"
            " 60s"
        )


def test_a_bug_is_a_line_too(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(options: object) -> str:
        raise ZeroDivisionError("oh")

    monkeypatch.setattr("ticketing_server.admin.online.status", broken)
    assert re.fullmatch(
        r"this is a bug, please report it: ZeroDivisionError: oh \(test_admin_cli.py:\d+,"
        r" version \S+\)",
        refusal(capsys, 1, "status"),
    )


def test_the_server_and_the_command_start_without_grpc() -> None:
    program = (
        "import sys, ticketing_server.cli, ticketing_server.serve, ticketing_server.testing;"
        "import ticketing_server.admin.cli;"
        "print([m for m in ('grpc', 'google.protobuf') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"


def test_without_grpc_the_command_says_what_to_install() -> None:
    program = (
        "import sys; sys.modules['grpc'] = None;"
        "from ticketing_server.admin.cli import main; sys.exit(main(['status']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (
        USAGE,
        "ticketing-admin: the packages of gRPC are not installed; try: pip install"
        " 'ticketing-server[admin]'\n",
    )


def test_output_that_nobody_reads_is_no_error(server: ServerThread) -> None:
    command = [sys.executable, "-m", "ticketing_server.admin", "status", "--address"]
    with subprocess.Popen(
        [*command, address(server)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(60) == DONE
