"""Steps of scripts: a bare client against a scripted server, through a proxy, with no adapter."""

from pathlib import Path

import pytest
from ticketing_conformance.adapters import AdapterPool, Language
from ticketing_conformance.runner import run_case
from ticketing_conformance.script import parse_cases
from ticketing_conformance.server_pool import ServerPool

NOBODY = Language(
    name="nobody",
    language="Nobody",
    probe=(),
    build=(),
    command=("/no/such/adapter",),
    features=frozenset({"sync"}),
    hint="",
    environment={},
    tasks={},
)
CONNECTED = """
  peer listen as=p
  wire open as=w to={p.address} handshake=0
  peer accept p as=k
"""
PROXIED = """
  peer listen as=p
  proxy start as=x to={p.address}
  wire open as=w to={x.address} handshake=0
  peer accept p as=k
"""


def run(steps, flags="dirty"):
    text = f"case c\n  about x\n  flags {flags}\n  timeout 30\n{steps}\n"
    (case,) = parse_cases(text, "behaviour", Path("c.case"))
    return run_alone(case)


def run_alone(case):
    servers = ServerPool()
    try:
        return run_case(case, NOBODY, "sync", AdapterPool(), servers)
    finally:
        servers.close()


@pytest.mark.parametrize(
    "steps",
    [
        CONNECTED + "  wire send w ping echo=5\n  peer expect k ping echo=5\n",
        CONNECTED
        + "  wire send w ping echo=5\n  peer expect k ping into=f\n  check {k.echo} == 5\n"
        + "  peer send k ping every=1\n  wire expect w ping echo=5\n",
        CONNECTED + "  peer send k granted request_id=1 token=7 waited_ms=0 cuts=1,9 gap_ms=1\n"
        "  wire expect w granted token=7 -> ok waited_ms=0\n",
        CONNECTED + "  peer send k raw=x:500008 cuts=1\n  peer send k raw=x:0000000000000001\n"
        "  wire expect w ping echo=1\n",
        CONNECTED + "  peer eof k\n  wire expect_end w\n",
        CONNECTED + "  wire reset w\n  peer expect_end k -> ok how=reset\n",
        CONNECTED + "  wire eof w\n  peer expect_end k -> ok how=eof\n",
        CONNECTED + "  peer expect_nothing k for_ms=50\n",
        CONNECTED + "  peer connections p -> ok count=1\n",
        PROXIED + "  proxy hold x up\n  wire send w ping echo=5\n  proxy seen x up ping echo=5\n"
        "  peer expect_nothing k for_ms=50\n  proxy let_go x up\n  peer expect k ping echo=5\n",
        PROXIED + "  repeat i 1..3\n    wire send w ping echo={i}\n  end\n"
        "  proxy seen x up ping times=3 -> ok echo=3\n"
        "  proxy count x up ping echo=2 -> ok count=1\n",
        PROXIED + "  proxy connections x at_least=1 -> ok count=1\n  proxy cut x\n"
        "  peer expect_end k\n",
        "  set n = 5\n  check {n * 2 + 1} == 11\n  sleep 1\n",
        "  file new as=f\n  file number {f.path} -> ok value=0\n",
        "  certs as=certs -> ok ca=* other_cert=* client_key=*\n",
        "  server start as=s\n  wire open as=w to={s.address}\n  server has s connections=1\n"
        '  wire send w acquire request_id=1 wait_ms=0 lease_ms=9000 key="k"\n'
        "  wire expect w granted\n  server has s tickets=1\n"
        '  wire send w release request_id=2 token={w.token} key="k"\n'
        "  wire expect w released\n  server empty s\n",
    ],
)
def test_steps_that_hold(steps):
    outcome = run(steps)
    assert outcome.failure == "", "\n".join(outcome.transcript)


@pytest.mark.parametrize(
    ("steps", "why"),
    [
        (CONNECTED + "  wire send w ping echo=5\n  peer expect k ping echo=6\n", "expected 6"),
        (CONNECTED + "  wire send w ping echo=5\n  peer expect k hello\n", "expected hello"),
        (CONNECTED + "  peer expect k ping within_ms=100\n", "did not come within 0.1 s"),
        (CONNECTED + "  wire close w\n  peer expect k ping\n", "ended with"),
        (CONNECTED + "  wire send w raw=x:ff0000\n  peer expect k ping\n", "op 0xff"),
        (
            CONNECTED + "  wire send w ping echo=5\n  peer expect_nothing k\n",
            "nothing was expected",
        ),
        (CONNECTED + "  wire send w ping echo=5\n  wire eof w\n  peer expect_end k\n", "before it"),
        (CONNECTED + "  peer expect_end k within_ms=50\n", "did not end"),
        (CONNECTED + "  wire eof w\n  peer expect_nothing k\n", "ended the connection"),
        (CONNECTED + "  peer send k granted token=1\n", "can't be encoded"),
        (CONNECTED + "  peer send k ping echo=5 -> ok n=1\n", "n is missing"),
        (CONNECTED + "  peer accept p as=l within_ms=50\n", "no connection came"),
        (CONNECTED + "  peer dance k\n", "peer has no verb dance"),
        (CONNECTED + "  peer eof j\n", "there is no connection j"),
        (CONNECTED + "  peer eof k hard=1\n", "does not take hard"),
        (PROXIED + "  proxy seen x up ping within_ms=50\n", "0 of 1 ping"),
        (PROXIED + "  proxy count x up ping -> ok count=1\n", "count is 0"),
        (PROXIED + "  proxy on x both ping do=cut\n", "one direction"),
        (PROXIED + "  proxy hold x sideways\n", "up, down or both"),
        ("  check 1 > 2\n", "is not so"),
        ("  check {n} > 2\n", "n is not known"),
        ("  server start as=s max_lease=never\n", "ended with 2 at its start"),
        ("  server start as=s\n  server has s tickets=1 within_ms=50\n", "has {'tickets': 0}"),
        ("  open\n", "/no/such/adapter"),
    ],
)
def test_steps_that_fail_say_why(steps, why):
    outcome = run(steps)
    assert why in outcome.failure
    assert outcome.failure.startswith("c.case:line ")


def test_bytes_that_no_correct_client_sends_fail_the_case():
    steps = CONNECTED + "  wire send w ping echo=5\n  peer expect k ping\n"
    assert "frame 1 of the client is ping" in run(steps, "real").failure
    assert run(steps, "dirty").failure == ""


def test_a_failed_case_keeps_its_steps_and_streams():
    outcome = run(CONNECTED + "  wire send w ping echo=5\n  peer expect k hello\n")
    assert len(outcome.transcript) == 4
    (capture,) = outcome.captures
    assert capture.connection.up.whole().hex() == "5000080000000000000005"


def test_a_case_ends_at_its_time_out():
    (case,) = parse_cases(
        "case c\n  about x\n  timeout 0.2\n  repeat i 1..100\n    sleep 50\n  end\n", "b", Path("c")
    )
    outcome = run_alone(case)
    assert "longer than 0.2 s" in outcome.failure
