"""The generator accepts a correct server, and names what a wrong one did."""

from __future__ import annotations

import struct
import subprocess
from pathlib import Path

import pytest
from generator import report, run
from scripted_server import GRANTED, RELEASED, Answer, ScriptedServer, honest

CONNECTION, USAGE, WRONG_REPLY = 1, 2, 3
ACQUIRE, RELEASE = ord("A"), ord("R")


def short_run(loadgen: Path, port: int, *arguments: str | int) -> subprocess.CompletedProcess[str]:
    """Three connections with five requests in flight on each, two hundred in all."""
    load = ("--connections", 3, "--in-flight", 5, "--requests", 200)
    return run(loadgen, "--port", port, *load, *arguments)


def test_counts_are_exact_with_an_honest_server(loadgen: Path) -> None:
    with ScriptedServer(honest, secret=b"a shared secret") as server:
        secret = ("--secret", "a shared secret")
        figures = report(short_run(loadgen, server.port, "--json", *secret))
    assert figures["requests"] == 200
    assert figures["latency"]["samples"] == 200
    assert figures["verified"] == {
        "acquires": 100,
        "granted": 100,
        "releases": 100,
        "released": 100,
    }


def test_text_report_names_what_was_verified(loadgen: Path) -> None:
    with ScriptedServer(honest) as server:
        done = short_run(loadgen, server.port)
    assert done.returncode == 0, done.stderr
    assert "100 acquires = 100 granted, 100 releases = 100 released" in done.stdout


def test_held_tickets_are_taken_and_given_back(loadgen: Path) -> None:
    with ScriptedServer(honest) as server:
        hold = ("--job", "hold", "--hold", 150, "--json")
        figures = report(
            run(loadgen, "--port", server.port, "--connections", 2, "--in-flight", 4, *hold)
        )
    assert figures["verified"]["granted"] == 150
    assert figures["verified"]["released"] == 150


def wrong_id(op: int, request_id: int, token: int) -> bytes:
    return honest(op, request_id + 1000 * (request_id == 9), token)


def same_token_again(op: int, request_id: int, token: int) -> bytes:
    return honest(op, request_id, min(token, 20))


def token_of_zero(op: int, request_id: int, token: int) -> bytes:
    return honest(op, request_id, 0)


def granted_to_a_release(op: int, request_id: int, token: int) -> bytes:
    return GRANTED.pack(ord("A"), 20, request_id, 10**6 + request_id, 0)


def released_to_an_acquire(op: int, request_id: int, token: int) -> bytes:
    return RELEASED.pack(ord("R"), 8, request_id)


def second_reply(op: int, request_id: int, token: int) -> bytes:
    reply = honest(op, request_id, token)
    return reply + reply if op == RELEASE else reply


def not_held(op: int, request_id: int, token: int) -> bytes:
    if op == RELEASE:
        return RELEASED.pack(ord("N"), 8, request_id)
    return honest(op, request_id, token)


def timed_out(op: int, request_id: int, token: int) -> bytes:
    return RELEASED.pack(ord("T"), 8, request_id)


def error(op: int, request_id: int, token: int) -> bytes:
    text = b"lease_ms is 9; at most 8\x07"
    return struct.pack(">BHQB", ord("E"), 9 + len(text), request_id, 2) + text


def dropped(op: int, request_id: int, token: int) -> bytes:
    return struct.pack(">BHQB", ord("D"), 9, token, 1)


def unknown_op(op: int, request_id: int, token: int) -> bytes:
    return RELEASED.pack(ord("Z"), 8, request_id)


def wrong_length(op: int, request_id: int, token: int) -> bytes:
    return struct.pack(">BHQQ", ord("A"), 16, request_id, token)


def ping_never_sent(op: int, request_id: int, token: int) -> bytes:
    return RELEASED.pack(ord("P"), 8, 0)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (wrong_id, "request 1009 of connection"),
        (same_token_again, "got token 20 after token 20"),
        (token_of_zero, "got token 0 after token 0"),
        (granted_to_a_release, "is a release and got granted"),
        (released_to_an_acquire, "is an acquire and got released"),
        (second_reply, "which is not in flight"),
        (not_held, "got 'N'"),
        (timed_out, "got 'T'"),
        (error, "lease_ms is 9; at most 8?"),
        (dropped, "was dropped for reason 1"),
        (unknown_op, "op 0x5a with 8 bytes"),
        (wrong_length, "op 0x41 with 16 bytes"),
        (ping_never_sent, "a ping was answered that was not sent"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_lying_server_is_detected(loadgen: Path, answer: Answer, said: str) -> None:
    with ScriptedServer(answer) as server:
        done = short_run(loadgen, server.port)
    assert done.returncode == WRONG_REPLY, done.stdout
    assert "wrong reply" in done.stderr
    assert said in done.stderr
    assert done.stdout == "", "figures of a run that failed are not printed"


def test_a_key_granted_twice_is_detected(loadgen: Path) -> None:
    """Two waiters of one key are granted in one write, so before either could release."""
    first: list[bytes] = []

    def granted_in_twos(op: int, request_id: int, token: int) -> bytes:
        reply = honest(op, request_id, token)
        if op == ACQUIRE and not first:
            first.append(reply)
            return b""
        return b"".join([*first, reply])

    with ScriptedServer(granted_in_twos) as server:
        contended = ("--job", "contended", "--keys", 1, "--connections", 1, "--in-flight", 2)
        done = run(loadgen, "--port", server.port, *contended)
    assert done.returncode == WRONG_REPLY, done.stdout
    assert "key 0 was granted with token 2 before token 1 was released" in done.stderr


def test_a_wrong_proof_is_detected(loadgen: Path) -> None:
    with ScriptedServer(honest, wrong_proof=True) as server:
        done = short_run(loadgen, server.port)
    assert done.returncode == WRONG_REPLY
    assert "does not know the secret" in done.stderr


def test_a_wrong_secret_is_a_refused_connection(loadgen: Path) -> None:
    with ScriptedServer(honest, secret=b"one") as server:
        done = short_run(loadgen, server.port, "--secret", "another")
    assert done.returncode == CONNECTION
    assert "refuses the handshake with code 3: wrong mac" in done.stderr


def at(server: ScriptedServer) -> str:
    return f"127.0.0.1:{server.port}"


def test_the_leader_of_a_cluster_is_followed(loadgen: Path) -> None:
    """One node is down, one names the leader at once, one first knows none and then leads."""
    with ScriptedServer(honest) as down:
        pass
    welcomes = [(3, ""), (3, ""), (1, "")]
    with ScriptedServer(honest, secret=b"one", welcomes=welcomes) as leader:
        named = [(2, at(leader))]
        with ScriptedServer(not_held, secret=b"one", welcomes=named) as follower:
            nodes = ",".join(map(at, (down, follower, leader)))
            load = ("--connections", 3, "--in-flight", 5, "--requests", 200, "--json")
            figures = report(run(loadgen, "--cluster", nodes, "--secret", "one", *load))
    assert figures["verified"]["released"] == 100
    assert figures["leader"] == at(leader)


def test_a_lone_follower_is_refused(loadgen: Path) -> None:
    with ScriptedServer(honest, welcomes=[(2, "elsewhere:1")]) as follower:
        done = short_run(loadgen, follower.port)
    assert done.returncode == CONNECTION
    assert "does not lead, 'elsewhere:1' is said to; name all with --cluster" in done.stderr


def test_a_leader_that_stops_leading_ends_the_run(loadgen: Path) -> None:
    def stops(op: int, request_id: int, token: int) -> bytes:
        if request_id < 9:
            return honest(op, request_id, token)
        return struct.pack(">BH", ord("L"), 6) + b"node:2"

    with ScriptedServer(stops, welcomes=[(1, "")]) as leader:
        done = run(loadgen, "--cluster", at(leader), "--connections", 1, "--requests", 200)
    assert done.returncode == CONNECTION
    assert "the server stopped leading; 'node:2' is said to lead now" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--key-bytes", "7"), "8 to 128"),
        (("--cluster", "one:1,two"), "1 to 5 HOST:PORT"),
        (("--cluster", "a:1,b:1,c:1,d:1,e:1,f:1"), "1 to 5 HOST:PORT"),
        (("--cluster", "one:1x"), "1 to 5 HOST:PORT"),
        (("--cluster", "one:1", "--protocol", "redis"), "--protocol ticketing alone"),
        (("--server-pid", "1,x"), "--server-pid is 'x'"),
        (("--key-bytes", "40-20"), "40 to 128"),
        (("--connections", "0"), "1 to 10000"),
        (("--requests", "3"), "even number"),
        (("--seconds", "nan"), "0 to 3600"),
        (("--protocol", "http"), "ticketing or redis"),
        (("--protocol", "redis", "--job", "contended"), "redis has none"),
        (("more",), "is no option"),
    ],
)
def test_wrong_arguments_are_named(loadgen: Path, arguments: tuple[str, ...], said: str) -> None:
    done = run(loadgen, *arguments)
    assert done.returncode == USAGE
    assert said in " ".join(done.stderr.split())


def test_the_mirror_answers_what_the_generator_accepts(built: Path) -> None:
    with subprocess.Popen([built / "mirror"], stdout=subprocess.PIPE, text=True) as mirror:
        try:
            assert mirror.stdout is not None
            port = int(mirror.stdout.readline())
            figures = report(short_run(built / "loadgen", port, "--json"))
        finally:
            mirror.kill()
    assert figures["verified"]["released"] == 100
