"""What is printed, to the letter."""

from __future__ import annotations

import json

from ticketing_server.admin import admin_pb2 as pb
from ticketing_server.admin import tables

STATE = pb.AppliedState(
    mode=pb.MODE_CLUSTER,
    role=pb.ROLE_FOLLOWER,
    slot=2,
    term=7,
    index=1234,
    cluster_time_ms=61_250,
    leader="10.0.0.1:5225",
)
TICKETS = [
    pb.Ticket(
        token=1883246337716125696,
        keys=[b"orders/42"],
        owner=(1 << 64) - 1,
        connected=True,
        name="billing-worker",
        peer="127.0.0.1:50484",
        held_ms=244,
        left_ms=29_756,
    ),
    pb.Ticket(
        token=1883246337716125700,
        keys=[b"a b", b"c,d\x1b[2J", "ü".encode()],
        owner=7,
        name="\x1b[31mred\n<script>",
        held_ms=90_061_000,
        left_ms=3_723_000,
    ),
]
WAITERS = [
    pb.Waiter(
        joined=1,
        keys=[b"orders/42"],
        owner=7,
        state=pb.Waiter.STATE_ATTACHED,
        name="b",
        peer="[::1]:50490",
        waited_ms=63_000,
        left_ms=0,
    ),
    pb.Waiter(joined=20, keys=[b"orders/42", b"x"], owner=8, state=pb.Waiter.STATE_HELD_BACK),
]
STATUS = pb.StatusResponse(
    state=STATE,
    version="0.1.0",
    engine="python",
    uptime_ms=7_384_000,
    tickets=2,
    held_keys=4,
    waiters_attached=1,
    waiters_held_back=1,
    longest_queue=2,
    oldest_waiter_age_ms=63_000,
    connections=3,
    grants=17,
    loop_lag_us=1_250,
    checksum=bytes(range(8)),
    cluster_id=bytes(range(16)),
    node_id=0x0123456789ABCDEF,
    commit_index=1240,
    members=[
        pb.Member(
            slot=0,
            kind=pb.Member.KIND_VOTER,
            node_id=1,
            address="10.0.0.1:5225",
            is_leader=True,
            lag_entries=0,
            heard_ms_ago=12,
        ),
        pb.Member(slot=1, kind=pb.Member.KIND_VACANT, address="10.0.0.2:5225"),
        pb.Member(
            slot=2,
            kind=pb.Member.KIND_LEARNER,
            node_id=0x0123456789ABCDEF,
            address="10.0.0.3:5225",
        ),
    ],
)


def test_tickets_line_up_and_show_nothing_but_printable_ascii() -> None:
    head, first, second = tables.tickets_table(TICKETS).splitlines()
    name = r"\x1b[31mred\x0a<script>"
    assert head == (
        "TOKEN                HELD   LEFT   NAME                     PEER             CLIENT"
        "                KEYS"
    )
    assert first == (
        "1883246337716125696  244ms  29.7s  billing-worker           127.0.0.1:50484"
        "  18446744073709551615  orders/42"
    )
    assert second == (
        rf"1883246337716125700  1d01h  1h02m  {name}  -                7"
        r"                     a\x20b,c\x2cd\x1b[2J,\xc3\xbc"
    )


def test_waiters_line_up() -> None:
    assert tables.waiters_table(WAITERS) == (
        "JOINED  STATE      WAITED  LEFT    NAME  PEER         CLIENT  KEYS\n"
        "1       attached   1m03s   0ms     b     [::1]:50490  7       orders/42\n"
        "20      held_back  0ms     no end  -     -            8       orders/42,x\n"
    )


def test_an_empty_table_has_a_head() -> None:
    assert tables.tickets_table([]) == "TOKEN  HELD  LEFT  NAME  PEER  CLIENT  KEYS\n"


def test_the_status_of_a_member() -> None:
    assert tables.status_table(STATUS) == (
        "cluster: follower, slot 2, term 7, index 1234, cluster time 61250ms,"
        " leader 10.0.0.1:5225\n"
        "version        0.1.0 (python)\n"
        "up             2h03m\n"
        "draining       no\n"
        "tickets        2 of 4 keys\n"
        "waiters        1 attached, 1 held back, 0 detached\n"
        "longest queue  2\n"
        "oldest waiter  1m03s\n"
        "connections    3\n"
        "grants         17\n"
        "loop lag       1.2ms\n"
        "node id        0123456789abcdef\n"
        "cluster id     000102030405060708090a0b0c0d0e0f\n"
        "committed      1240\n"
        "checksum       0001020304050607\n"
        "\n"
        "SLOT  KIND     ROLE    NODE              LAG  HEARD     ADDRESS\n"
        "0     voter    leader  0000000000000001  0    12ms ago  10.0.0.1:5225\n"
        "1     vacant   -       -                 -    -         10.0.0.2:5225\n"
        "2     learner  -       0123456789abcdef  -    -         10.0.0.3:5225\n"
    )


def test_json_has_the_same_in_numbers_but_for_what_is_too_large() -> None:
    assert tables.ticket_json(TICKETS[1]) == {
        "token": "1883246337716125700",
        "keys": ["a\\x20b", "c,d\\x1b[2J", "\\xc3\\xbc"],
        "client_id": "7",
        "connected": False,
        "name": "\\x1b[31mred\\x0a<script>",
        "peer": "",
        "held_ms": 90_061_000,
        "left_ms": 3_723_000,
    }
    assert tables.waiter_json(WAITERS[1]) == {
        "joined": "20",
        "keys": ["orders/42", "x"],
        "client_id": "8",
        "state": "held_back",
        "name": "",
        "peer": "",
        "waited_ms": 0,
        "left_ms": None,
    }
    status = tables.status_json(STATUS)
    assert json.loads(tables.as_json(status)) == status
    assert status["state"] == {
        "mode": "cluster",
        "role": "follower",
        "slot": 2,
        "term": 7,
        "index": 1234,
        "cluster_time_ms": 61_250,
        "leader": "10.0.0.1:5225",
    }
    assert status["members"][1] == {
        "slot": 1,
        "kind": "vacant",
        "is_leader": False,
        "node_id": None,
        "address": "10.0.0.2:5225",
        "lag_entries": None,
        "heard_ms_ago": None,
    }


def test_durations_have_two_units_at_most() -> None:
    shown = {
        0: "0ms",
        999: "999ms",
        1_000: "1.0s",
        59_999: "59.9s",
        60_000: "1m00s",
        3_599_999: "59m59s",
        3_600_000: "1h00m",
        86_399_999: "23h59m",
        86_400_000: "1d00h",
    }
    assert {ms: tables.duration(ms) for ms in shown} == shown
