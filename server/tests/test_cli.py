"""The command from outside: exit codes, signals, ready file, banner, reload."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import re
import resource
import select
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple, Protocol
from urllib.request import urlopen

import pytest
import uvloop
from plain_client import PlainClient
from ticketing_server import constants_gen as c
from ticketing_server import service
from ticketing_server.cli import main
from ticketing_server.limits import Limits
from ticketing_server.settings import SETTINGS
from ticketing_server.testing import STOP_TIMEOUT_S, Certificates, ServerProcess, make_certificates

SECRET = "0123456789abcdef0123456789abcdef"
COMMAND_TIMEOUT_S = 60.0
CONSOLE_SCRIPT = (
    "import sys; from importlib.metadata import entry_points;"
    " (script,) = entry_points(group='console_scripts', name='ticketing-server');"
    " sys.exit(script.load()())"
)


class Done(NamedTuple):
    """What a command that ended by itself left."""

    returncode: int
    stdout: str
    stderr: str


class Command(Protocol):
    """Runs the command with arguments and environment to its end."""

    def __call__(self, *arguments: str, env: dict[str, str] | None = None) -> Done:
        """See the class."""


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """The command in this process, as a start of Python is most of what one of its own costs."""

    def run(*arguments: str, env: dict[str, str] | None = None) -> Done:
        with monkeypatch.context() as patch:
            for name in [name for name in os.environ if name.startswith("TICKETING_")]:
                patch.delenv(name)
            for name, value in (env or {}).items():
                patch.setenv(name, value)
            capsys.readouterr()
            try:
                code = main(list(arguments))
            except SystemExit as ended:
                code = int(ended.code or 0)
            return Done(code, *capsys.readouterr())

    return run


def eventually(holds: Callable[[], object], what: str) -> None:
    """Wait until something is true, for as long as a loaded machine may need."""
    give_up_s = time.monotonic() + STOP_TIMEOUT_S
    while not holds():
        assert time.monotonic() < give_up_s, what
        time.sleep(0.01)


class TestExitCodes:
    @pytest.mark.parametrize("program", [["-m", "ticketing_server"], ["-c", CONSOLE_SCRIPT]])
    def test_arrive_at_the_shell(self, program: list[str]) -> None:
        done = subprocess.run(
            [sys.executable, *program, "--keepalive", "5"],
            capture_output=True,
            text=True,
            timeout=COMMAND_TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 2
        assert done.stderr.startswith("ticketing-server: --keepalive: got '5'")

    def test_2_for_a_wrong_value_in_one_line_and_a_command(self, command: Command) -> None:
        done = command("--keepalive", "5")
        assert done.returncode == 2
        assert done.stderr == (
            "ticketing-server: --keepalive: got '5', takes whole seconds as a duration,"
            " 1s to 1h\n  try: ticketing-server --keepalive 5s\n"
        )

    def test_2_for_an_unknown_or_abbreviated_flag(self, command: Command) -> None:
        for words, said in [
            (("--no-such", "5s"), "got '--no-such', which is no flag\n"),
            (("--keep-alive", "5s"), "got '--keep-alive', which is no flag; is --keepalive meant?"),
            (("--keepaliv=5s",), "got '--keepaliv=5s', which is no flag; is --keepalive meant?"),
            (("start",), "got 'start', which is no flag\n"),
            (("--keepalive",), "argument --keepalive: expected one argument"),
        ]:
            done = command(*words)
            assert done.returncode == 2
            assert done.stderr.startswith(f"ticketing-server: {said}")
            assert done.stderr.endswith("  try: ticketing-server --help\n")

    def test_2_for_tls_files_that_can_t_be_used(self, command: Command) -> None:
        done = command("--tls-cert", "/no/cert.pem", "--tls-key", "/no/key.pem")
        assert done.returncode == 2
        assert "--tls-cert: got '/no/cert.pem' (No such file or directory)" in done.stderr
        assert "Traceback" not in done.stderr

    def test_2_for_a_ready_file_that_can_t_be_written(
        self, command: Command, tmp_path: Path
    ) -> None:
        socket_path, folder = tmp_path / "socket", tmp_path / "folder"
        folder.mkdir()
        done = command("--listen", f"unix:{socket_path}", "--http-listen", "off",
                       "--ready-file", str(folder))  # fmt: skip
        assert done.returncode == 2
        assert f"--ready-file: got '{folder}', which can't be written (Is a directory)" in (
            done.stderr
        )
        assert "is ready" not in done.stderr
        assert list(tmp_path.iterdir()) == [folder]

    @pytest.mark.parametrize("flag", ["--listen", "--listen-v3", "--http-listen"])
    def test_3_where_somebody_listens_already(self, command: Command, flag: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            address = f"127.0.0.1:{taken.getsockname()[1]}"
            flags = {"--listen": "127.0.0.1:0", "--http-listen": "off", flag: address}
            arguments = [part for pair in flags.items() for part in pair]
            for extra in ((), ("--check",)):
                done = command(*arguments, *extra)
                assert done.returncode == 3
                said, advice = done.stderr.splitlines()
                assert said == f"ticketing-server: {flag} {address}: Address already in use"
                assert f"{flag} 127.0.0.1:0" in advice

    def test_no_port_is_advised_where_a_path_is_taken(
        self, command: Command, tmp_path: Path
    ) -> None:
        path = tmp_path / "file"
        path.write_text("not a socket")
        done = command("--listen", f"unix:{path}", "--http-listen", "off", "--check")
        assert done.returncode == 3
        assert done.stderr == f"ticketing-server: --listen unix:{path}: Address already in use\n"

    def test_3_for_a_name_that_does_not_resolve(self, command: Command) -> None:
        done = command(
            "--listen", "no-such-host.invalid:0", "--restart-grace", "0",
            env={"TICKETING_SECRET": SECRET},
        )  # fmt: skip
        assert done.returncode == 3
        assert "--listen no-such-host.invalid:0: " in done.stderr

    def test_0_after_a_drain(self) -> None:
        with ServerProcess() as server, PlainClient(server.address) as client:
            assert server.process is not None
            server.process.send_signal(signal.SIGTERM)
            assert client.read_frame() == (c.REPLY_LEADER, b"")
            assert client.read_frame() == (0, b"")
            client.close()
            assert server.process.wait(STOP_TIMEOUT_S) == 0
            assert server.log.endswith(" info stopped\n")

    def test_0_without_standard_streams(self, tmp_path: Path) -> None:
        """As of a daemon that closed them: no socket may get their numbers."""
        ready = tmp_path / "ready"
        script = f"exec {sys.executable} -m ticketing_server --listen 127.0.0.1:0"
        process = subprocess.Popen(["sh", "-c", f"{script} --ready-file {ready} <&- >&- 2>&-"])
        try:
            eventually(ready.exists, "the server was to start")
            for number in range(3):
                assert os.readlink(f"/proc/{process.pid}/fd/{number}") == os.devnull
        finally:
            process.terminate()
        assert process.wait(STOP_TIMEOUT_S) == 0

    def test_sigint_drains_too(self) -> None:
        with ServerProcess() as server:
            assert server.process is not None
            server.process.send_signal(signal.SIGINT)
            assert server.process.wait(STOP_TIMEOUT_S) == 0

    def test_a_second_signal_ends_at_once(self) -> None:
        with ServerProcess() as server, PlainClient(server.address) as client:
            # Who does not read what was sent keeps a drain waiting.
            client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            client.socket.setblocking(False)
            pings = (bytes([c.OP_PING, 0, 8]) + bytes(8)) * 10_000
            rest = b""
            while select.select([], [client.socket], [], 2.0)[1]:
                rest = rest or pings
                rest = rest[client.socket.send(rest) :]
            assert server.process is not None
            server.process.send_signal(signal.SIGTERM)
            eventually(lambda: " info draining" in server.log, "a drain was to begin")
            server.process.send_signal(signal.SIGTERM)
            assert server.process.wait(STOP_TIMEOUT_S) == -signal.SIGTERM
            assert "stopped" not in server.log


class TestSubcommands:
    def test_secret(self, command: Command) -> None:
        first, second = command("secret"), command("secret")
        assert first.returncode == second.returncode == 0
        assert len(first.stdout.strip()) == 43
        assert first.stdout != second.stdout
        started = command("--check", "--listen", "127.0.0.1:0", env={
            "TICKETING_SECRET": first.stdout.strip()
        })  # fmt: skip
        assert started.returncode == 0

    def test_check_says_that_it_would_start_and_leaves_nothing(
        self, command: Command, tmp_path: Path
    ) -> None:
        path = tmp_path / "socket"
        done = command("--check", "--listen", f"unix:{path}", "--http-listen", "off")
        assert (done.returncode, done.stdout) == (0, "ticketing-server would start\n")
        assert not path.exists()

    def test_print_settings_shows_every_setting_and_no_secret(self, command: Command) -> None:
        env = {"TICKETING_SECRET": SECRET, "TICKETING_MAX_LEASE": "1h"}
        done = command("--print-settings", "--keepalive", "7s", env=env)
        assert done.returncode == 0
        rows = {line.split()[0]: line.split()[1:] for line in done.stdout.splitlines()}
        assert set(rows) == {setting.name for setting in SETTINGS} | {"secrets"}
        assert rows["keepalive"] == ["7s", "flag"]
        assert rows["max-lease"] == ["1h", "env"]
        assert rows["listen"] == ["127.0.0.1:5225", "default"]
        assert rows["secrets"] == ["default", "env"]
        assert SECRET not in done.stdout

    def test_version_and_help(self, command: Command) -> None:
        assert command("--version").stdout.strip() == "0.1.0"
        text = command("--help").stdout
        for setting in SETTINGS:
            assert setting.flag in text


class TestStart:
    def test_the_banner_says_what_one_wants_to_know(self) -> None:
        with ServerProcess(listen="127.0.0.1:0", restart_grace="2m") as server:
            eventually(lambda: "  dashboard " in server.log, "the banner was to be written")
            log = server.log
            assert server.url in log
            assert f"{server.http_url}/" in log
            assert "a restart forgets tickets and queues; it grants nothing for the first 2m" in log
            assert "none: every program on this machine" in log

    @pytest.mark.skipif(find_spec("ticketing") is None, reason="the Python client is not installed")
    @pytest.mark.parametrize("secret_line", ["", SECRET, f"named {SECRET}"])
    def test_the_line_to_paste_takes_a_lock(self, secret_line: str, tmp_path: Path) -> None:
        settings = {}
        if secret_line:
            (tmp_path / "a secret").write_text(f"{secret_line}\nold {SECRET[::-1]}\n")
            settings["secret_file"] = str(tmp_path / "a secret")
        with ServerProcess(**settings) as server:
            eventually(lambda: "  dashboard " in server.log, "the banner was to be written")
            (line,) = re.findall(r"^  try it +(.*)$", server.log, re.MULTILINE)
            done = subprocess.run(
                ["sh", "-c", line],
                env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
                capture_output=True,
                text=True,
                timeout=COMMAND_TIMEOUT_S,
                check=False,
            )
            assert done.returncode == 0, done.stderr
            assert "first-lock" in done.stdout
            assert done.stderr == ""

    def test_json_logs_are_json_throughout(self) -> None:
        with ServerProcess(SECRET, log_format="json") as server:
            eventually(lambda: server.log.endswith("\n"), "a line was to be written")
            (line,) = server.log.splitlines()
            started = json.loads(line)
            assert started["event"] == "started"
            assert started["url"] == server.url
            assert started["secrets"] == ["default"]
            assert SECRET not in line

    def test_several_addresses_and_the_ready_file(self, tmp_path: Path) -> None:
        unix, ready = tmp_path / "socket", tmp_path / "ready"
        with ServerProcess(
            listen=f"127.0.0.1:0,[::1]:0,unix:{unix}", ready_file=str(ready)
        ) as server:
            assert len(server.values("listen")) == 3
            assert server.process is not None
            assert server.values("pid") == [str(server.process.pid)]
            for where in (server.address, str(unix)):
                with PlainClient(where) as client:
                    client.ping()
            host, _, port = server.values("listen")[1].rpartition(":")
            with PlainClient((host.strip("[]"), int(port))) as client:
                client.ping()
            assert ready.exists()
        assert not ready.exists()
        assert not unix.exists()

    @pytest.mark.parametrize("loop", ["asyncio", "auto"])
    def test_probes_on_each_loop(self, loop: str) -> None:
        with ServerProcess(loop=loop) as server:
            for path in ("/healthz", "/readyz", "/status", "/metrics", "/"):
                with urlopen(server.http_url + path, timeout=30) as answer:
                    assert answer.status == 200

    def test_systemd_is_told(self, tmp_path: Path) -> None:
        path = tmp_path / "notify"
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
            manager.bind(str(path))
            manager.settimeout(STOP_TIMEOUT_S)
            with ServerProcess(env={"NOTIFY_SOCKET": str(path)}) as server:
                assert manager.recv(100) == b"READY=1"
                assert server.process is not None
                server.process.send_signal(signal.SIGHUP)
                assert manager.recv(100).startswith(b"RELOADING=1\nMONOTONIC_USEC=")
                assert manager.recv(100) == b"READY=1"
                server.process.send_signal(signal.SIGTERM)
                assert manager.recv(100) == b"STOPPING=1"


class TestReload:
    def test_sighup_takes_new_secrets_and_a_broken_file_changes_nothing(
        self, tmp_path: Path
    ) -> None:
        path = tmp_path / "secrets"
        path.write_text(f"old {SECRET}\n")
        with ServerProcess(secret_file=str(path)) as server:
            process = server.process
            assert process is not None
            kept = PlainClient(server.address, SECRET)
            path.write_text(f"new {SECRET[::-1]}\nold {SECRET}\n")
            process.send_signal(signal.SIGHUP)
            eventually(lambda: "names=new,old" in server.log, "a reload was to be logged")
            for secret in (SECRET, SECRET[::-1]):
                PlainClient(server.address, secret, client_id=2).close()
            path.write_text(f"short hunter2\nold {SECRET}\n")
            process.send_signal(signal.SIGHUP)
            eventually(lambda: "names=short,old" in server.log, "the next one")
            assert "the secret 'short' has fewer than 16 bytes" in server.log
            assert "hunter2" not in server.log
            path.write_text("not/a/name hidden-hidden\n")
            process.send_signal(signal.SIGHUP)
            eventually(lambda: "reload_failed what=secrets" in server.log, "and its failure")
            assert "hidden" not in server.log
            PlainClient(server.address, SECRET, client_id=2).close()
            path.write_text(f"new {SECRET[::-1]}\n")
            process.send_signal(signal.SIGHUP)
            eventually(lambda: "names=new\n" in server.log, "and the next one")
            with PlainClient(server.address, hello=False) as refused:
                assert refused.say_hello(SECRET, "test", 3)[0] == c.REPLY_ERROR
            kept.ping()
            kept.close()

    def test_tls_files_that_change_are_taken_and_connections_kept(self, tmp_path: Path) -> None:
        sets = [make_certificates(_made(tmp_path / name)) for name in ("first", "second")]
        cert, key, ca = (tmp_path / name for name in ("cert.pem", "key.pem", "ca.pem"))

        def install(made: Certificates) -> None:
            for source, target in ((made.server_cert, cert), (made.server_key, key), (made.ca, ca)):
                shutil.copy(source, target.with_suffix(".part"))
                target.with_suffix(".part").replace(target)

        def accepted(made: Certificates) -> bool:
            context = ssl.create_default_context(cafile=made.ca)
            context.load_cert_chain(made.client_cert, made.client_key)
            try:
                PlainClient(server.address, tls=context, client_id=2).close()
            except (ssl.SSLError, ConnectionError, AssertionError):
                return False
            return True

        first, second = sets
        install(first)
        with ServerProcess(tls_cert=str(cert), tls_key=str(key), tls_client_ca=str(ca)) as server:
            assert server.url.startswith("ticketings://")
            context = ssl.create_default_context(cafile=first.ca)
            context.load_cert_chain(first.client_cert, first.client_key)
            kept = PlainClient(server.address, tls=context)
            assert not accepted(second)
            install(second)
            eventually(lambda: accepted(second), "the new certificates were to be taken")
            assert not accepted(first)
            kept.ping()
            kept.close()
            install(first)
            assert server.process is not None
            server.process.send_signal(signal.SIGHUP)
            eventually(lambda: accepted(first), "and those of before, on a signal")
            key.write_text("broken")
            server.process.send_signal(signal.SIGHUP)
            eventually(lambda: "reload_failed what=tls" in server.log, "a failure is logged")
            assert accepted(first)


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


class TestFileLimit:
    def test_is_raised_as_far_as_the_system_lets_it(self) -> None:
        script = (
            "import resource; from ticketing_server import service;"
            " from ticketing_server.limits import Limits;"
            " resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(7)[1]));"
            " text = service.raise_file_limit(Limits(connections=100, handshakes=10));"
            " print(resource.getrlimit(resource.RLIMIT_NOFILE)[0], text)"
        )
        assert resource.RLIMIT_NOFILE == 7
        done = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
        )
        needed = service.files_needed(Limits(connections=100, handshakes=10))
        assert done.stdout == f"{needed} \n"

    def test_says_so_where_it_can_t_be(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(which: int, limits: tuple[int, int]) -> None:
            if max(limits) > 1_024:
                raise ValueError("not allowed")

        monkeypatch.setattr(resource, "getrlimit", lambda which: (256, 1_024))
        monkeypatch.setattr(resource, "setrlimit", refuse)
        text = service.raise_file_limit(Limits(connections=5_000))
        assert text.startswith("the limits need 6256 open files and the system allows 1024: ")
        assert "--max-connections" in text


def test_what_a_full_collection_finds_alive_is_not_looked_at_again() -> None:
    try:
        service.freeze_what_stays("stop", {"generation": 1})
        service.freeze_what_stays("start", {"generation": 2})
        assert gc.get_freeze_count() == 0
        service.freeze_what_stays("stop", {"generation": 2})
        assert gc.get_freeze_count() > 1_000
    finally:
        gc.unfreeze()


def test_only_a_loop_that_leaves_no_cycles_is_trusted_with_that() -> None:
    for make, trusted in ((asyncio.new_event_loop, False), (uvloop.new_event_loop, True)):
        loop = make()
        try:
            assert service.leaves_no_cycles(loop) is trusted
        finally:
            loop.close()
