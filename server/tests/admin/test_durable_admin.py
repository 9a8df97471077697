"""Administration of durable servers and clusters: snapshots, restore, transfer, recover."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import ticketing.sync
from ticketing_server.admin.cli import main
from ticketing_server.admin.errors import DIRECTORY, DONE, REFUSED, USAGE
from ticketing_server.cluster import snapshot_file
from ticketing_server.testing import ClusterProcesses, ServerProcess, ServerThread, running_cluster

WAIT_S = 60.0
Capture = pytest.CaptureFixture[str]


def output(capsys: Capture, *words: str) -> str:
    code = main(words)
    captured = capsys.readouterr()
    assert (code, captured.err) == (DONE, ""), captured.err
    return captured.out


def from_json(capsys: Capture, *words: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(output(capsys, *words, "--json"))
    return found


def refusal(capsys: Capture, code: int, *words: str) -> str:
    assert main(words) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1, captured.err
    return captured.err.removeprefix("ticketing-admin: ").rstrip("\n")


def eventually(holds: Callable[[], object], what: str) -> None:
    give_up_s = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < give_up_s, what
        time.sleep(0.05)


def at(server: ServerThread | ServerProcess) -> tuple[str, str]:
    return "--address", server.values("admin-listen")[0]


class TestDurable:
    def test_a_backup_is_restored_with_new_ids_and_rising_tokens(
        self, tmp_path: Path, capsys: Capture
    ) -> None:
        backup, copy = tmp_path / "backup", str(tmp_path / "copy")
        first = ServerThread(admin_listen="127.0.0.1:0", data_dir=str(tmp_path / "first"))
        with first as server, ticketing.sync.connect(server.url, name="holder") as client:
            kept = client.acquire("kept", lease=600)
            before = from_json(capsys, "status", *at(server))
            assert (before["state"]["mode"], before["state"]["role"]) == ("durable", "alone")
            assert before["members"] == []
            text = output(capsys, "snapshot", str(backup), *at(server))
            size = backup.stat().st_size
            assert text.endswith(f"\n{size} bytes are in {backup}\n")
            after_backup = client.acquire("not in the backup").token
            released = from_json(capsys, "force-release", "kept", str(kept.token), *at(server))[
                "released"
            ]
            assert released["token"] == str(kept.token)
            eventually(lambda: kept.is_lost, "the holder is told")
        meta, replica = snapshot_file.read(backup.read_bytes())
        assert replica.table.tickets == 1
        assert meta.configuration.cluster_id.hex() == before["cluster_id"]

        words = ("restore", "--snapshot", str(backup), "--data-dir", copy)
        text = output(capsys, *words, "--restart-grace", "3s")
        assert re.fullmatch(
            rf"restored: 1 tickets and 0 waiters as of entry {meta.index} of term {meta.term}\n"
            r"node [0-9a-f]{16} of slot 0 is the only member of the new cluster [0-9a-f]{32}\n"
            r"it grants nothing for 3s after its start; a lease of up to 1d of before may still go"
            r" on then\n"
            rf"start it: ticketing-server --data-dir {copy}\n",
            text,
        )
        assert refusal(capsys, DIRECTORY, *words).endswith(
            " already; name a directory that is empty or isn't there"
        )
        with ServerThread(admin_listen="127.0.0.1:0", data_dir=copy) as server:
            status = from_json(capsys, "status", *at(server))
            assert status["node_id"] != before["node_id"]
            assert status["cluster_id"] != before["cluster_id"]
            assert status["tickets"] == 1
            (ticket,) = from_json(capsys, "tickets", *at(server))["tickets"]
            assert (ticket["token"], ticket["keys"]) == (str(kept.token), ["kept"])
            assert (ticket["connected"], ticket["name"]) == (False, "")
            with ticketing.sync.connect(server.url) as client:
                assert client.try_acquire("free") is None
                begun = time.monotonic()
                granted = client.acquire("free", wait_timeout=WAIT_S)
                assert time.monotonic() - begun > 0.5
                assert granted.token > after_backup

    def test_without_a_choice_the_longest_lease_is_waited_out(
        self, tmp_path: Path, capsys: Capture
    ) -> None:
        backup = tmp_path / "backup"
        settings = {"data_dir": str(tmp_path / "first"), "max_lease": "2m"}
        with ServerThread(admin_listen="127.0.0.1:0", **settings) as server:
            status = ("status", *at(server))
            eventually(lambda: from_json(capsys, *status)["state"]["index"], "it leads")
            output(capsys, "snapshot", str(backup), *at(server))
            # Nothing is new since; the same file is as good.
            output(capsys, "snapshot", str(tmp_path / "again"), *at(server))
            in_use = str(tmp_path / "first")
            words = ("restore", "--snapshot", str(backup), "--data-dir", in_use)
            assert "is in use by another process" in refusal(capsys, DIRECTORY, *words)
        words = ("restore", "--snapshot", str(backup), "--data-dir", str(tmp_path / "copy"))
        made = from_json(capsys, *words, "--slots", "3", "--slot", "1")
        assert made["restart_grace_ms"] == 120_000
        assert (made["slot"], made["slots"], made["tickets"]) == (1, 3, 0)
        text = output(capsys, *words[:-1], str(tmp_path / "other"), "--slots", "3")
        assert text.endswith(
            "\nit grants nothing for 2m after its start: as long as the longest lease that may go"
            " on"
            f"\nstart it: ticketing-server --data-dir {tmp_path / 'other'} --slot 0 --cluster …"
            "\nrestored on this node only: the other slots start with empty directories and join it"
            "\n"
        )
        assert refusal(capsys, USAGE, *words, "--slot", "1") == (
            "--slot: got 1, and the cluster has slots 0 to 0; another size is given with --slots"
        )

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
    def test_what_root_restores_is_the_directory_s_owner_s(
        self, tmp_path: Path, capsys: Capture
    ) -> None:
        with ServerThread(admin_listen="127.0.0.1:0", data_dir=str(tmp_path / "a")) as server:
            status = ("status", *at(server))
            eventually(lambda: from_json(capsys, *status)["state"]["index"], "it leads")
            output(capsys, "snapshot", str(tmp_path / "backup"), *at(server))
        theirs = tmp_path / "theirs"
        theirs.mkdir()
        os.chown(theirs, 12_345, 12_346)
        precious = tmp_path / "precious"
        precious.touch()
        (theirs / "link").symlink_to(precious)
        backup = str(tmp_path / "backup")
        output(capsys, "restore", "--snapshot", backup, "--data-dir", str(theirs))
        made = [path for path in theirs.iterdir() if not path.is_symlink()]
        assert {(path.stat().st_uid, path.stat().st_gid) for path in made} == {(12_345, 12_346)}
        assert precious.stat().st_uid == 0

    def test_what_is_no_backup_is_refused(self, tmp_path: Path, capsys: Capture) -> None:
        path, to = tmp_path / "backup", str(tmp_path / "to")
        words = ("restore", "--snapshot", str(path), "--data-dir", to)
        ending = "; takes a file that `ticketing-admin snapshot` wrote"
        assert refusal(capsys, USAGE, *words) == (
            f"--snapshot: got {str(path)!a}, which can't be read (No such file or directory)"
            + ending
        )
        path.write_bytes(b"something else")
        assert refusal(capsys, DIRECTORY, *words).endswith(f"first bytes are others){ending}")
        assert not Path(to).exists()

    def test_recover_is_for_clusters_that_were(self, tmp_path: Path, capsys: Capture) -> None:
        nowhere = str(tmp_path / "nowhere")
        assert refusal(capsys, DIRECTORY, "recover", "--data-dir", nowhere) == (
            f"{nowhere!a} is no data directory; name that of a stopped node (--data-dir)"
        )
        assert not Path(nowhere).exists()
        alone = str(tmp_path / "alone")
        with ServerThread(data_dir=alone):
            pass
        assert refusal(capsys, DIRECTORY, "recover", "--data-dir", alone, "--yes") == (
            f"{alone!a} is of a durable server alone, which has no majority to lose; just start it"
        )


@pytest.fixture(scope="module")
def cluster() -> Iterator[ClusterProcesses]:
    with running_cluster(admin_listen="127.0.0.1:0") as running:
        yield running


class TestCluster:
    def test_every_node_says_who_leads(self, cluster: ClusterProcesses, capsys: Capture) -> None:
        leader = cluster.leader()
        for slot, node in enumerate(cluster.nodes):
            status = from_json(capsys, "status", *at(node))
            state = status["state"]
            assert (state["mode"], state["slot"]) == ("cluster", slot)
            assert state["role"] == ("leader" if slot == leader else "follower")
            assert state["leader"] == cluster.addresses[leader]
            assert [m["slot"] for m in status["members"] if m["is_leader"]] == [leader]
            assert [m["kind"] for m in status["members"]] == ["voter"] * 3
            assert [m["address"] for m in status["members"]] == list(cluster.addresses)
            lags = [m["lag_entries"] for m in status["members"]]
            assert (None in lags) == (slot != leader)

    def test_followers_show_what_is_applied_and_send_on_who_wants_more(
        self, cluster: ClusterProcesses, capsys: Capture
    ) -> None:
        leader = cluster.leader()
        follower = cluster.nodes[(leader + 1) % 3]
        with ticketing.sync.connect(cluster.url, name="holder") as client:
            ticket = client.acquire("orders/42", lease=600)
            token = str(ticket.token)

            def seen() -> list[dict[str, Any]]:
                words = ("tickets", "--key", "orders/42", *at(follower))
                found: list[dict[str, Any]] = from_json(capsys, *words)["tickets"]
                return found

            eventually(seen, "the follower applies it")
            assert (seen()[0]["token"], seen()[0]["name"]) == (token, "")
            (shown,) = from_json(capsys, "tickets", *at(cluster.nodes[leader]))["tickets"]
            assert shown["name"].startswith("holder")
            words = ("force-release", "orders/42", token)
            assert refusal(capsys, REFUSED, *words, *at(follower)) == (
                "only the leader can end tickets, and this node is a follower; ask the node whose"
                f" clients connect to {cluster.addresses[leader]} (--address)"
            )
            released = from_json(capsys, *words, *at(cluster.nodes[leader]))["released"]
            assert released["token"] == token
            eventually(lambda: ticket.is_lost, "the holder is told")
            eventually(lambda: not seen(), "the follower applies that too")

    def test_the_lead_goes_where_it_is_sent(
        self, cluster: ClusterProcesses, capsys: Capture
    ) -> None:
        leader = cluster.leader()
        to = (leader + 1) % 3
        words = ("transfer", "--to", str(to))
        assert "ask the node whose clients connect to" in refusal(
            capsys, REFUSED, *words, *at(cluster.nodes[to])
        )
        assert refusal(
            capsys, REFUSED, "transfer", "--to", str(leader), *at(cluster.nodes[leader])
        ).startswith(f"slot {leader} can take the lead now: it takes")
        output(capsys, *words, *at(cluster.nodes[leader]))
        eventually(lambda: cluster.leader() == to, "the other one leads")

    def test_a_follower_gives_the_backup_too(
        self, cluster: ClusterProcesses, tmp_path: Path, capsys: Capture
    ) -> None:
        follower = cluster.nodes[(cluster.leader() + 1) % 3]
        with ticketing.sync.connect(cluster.url) as client:
            token = client.acquire("kept", lease=600).token
            held = ("tickets", "--key", "kept", *at(follower))
            eventually(lambda: from_json(capsys, *held)["tickets"], "the follower applies it")
            output(capsys, "snapshot", str(tmp_path / "backup"), *at(follower))
        _, replica = snapshot_file.read((tmp_path / "backup").read_bytes())
        assert replica.table.ticket_of(b"kept")[0] == token.to_bytes(8, "big")
        alone = str(tmp_path / "alone")
        words = ("restore", "--snapshot", str(tmp_path / "backup"), "--data-dir", alone)
        assert from_json(capsys, *words, "--slots", "1", "--restart-grace", "0")["slots"] == 1
        with ServerThread(admin_listen="127.0.0.1:0", data_dir=alone) as server:
            (ticket,) = from_json(capsys, "tickets", "--key", "kept", *at(server))["tickets"]
            assert ticket["token"] == str(token)
            with ticketing.sync.connect(server.url) as client:
                granted = client.try_acquire("free at once")
                assert granted is not None
                assert granted.token > token

    def test_a_lost_majority_is_recovered_from_one_node(
        self, cluster: ClusterProcesses, capsys: Capture
    ) -> None:
        """The last test of this cluster, of which one node is left."""
        with ticketing.sync.connect(cluster.url) as client:
            token = client.acquire("before", lease=600).token
            left = cluster.leader()
            held = ("tickets", "--key", "before", *at(cluster.nodes[left]))
            assert from_json(capsys, *held)["tickets"]
            old_id = from_json(capsys, "status", *at(cluster.nodes[left]))["cluster_id"]
            for slot in range(3):
                cluster.kill(slot)
            for slot in range(3):
                if slot != left:
                    cluster.wipe(slot)
        directory = cluster.nodes[left]._flags["data-dir"]
        text = refusal(capsys, USAGE, "recover", "--data-dir", directory)
        assert re.match(
            rf"the node of slot {left} has entry \d+ of term \d+, with \d+ tickets", text
        )
        words = ("recover", "--data-dir", directory, "--yes", "--restart-grace", "3s")
        made = from_json(capsys, *words)
        assert (made["slot"], made["slots"], made["restart_grace_ms"]) == (left, 3, 3_000)
        for slot in range(3):
            cluster.restart(slot)
        assert cluster.leader() == left

        def voters() -> int:
            members = from_json(capsys, "status", *at(cluster.nodes[left]))["members"]
            return sum(member["kind"] == "voter" for member in members)

        eventually(lambda: voters() == 3, "the empty nodes join")
        status = from_json(capsys, "status", *at(cluster.nodes[(left + 1) % 3]))
        assert status["cluster_id"] == made["cluster_id"] != old_id
        (ticket,) = from_json(capsys, *held[:-1], at(cluster.nodes[left])[1])["tickets"]
        assert ticket["token"] == str(token)
        with ticketing.sync.connect(cluster.url) as client:
            assert client.acquire("after", wait_timeout=WAIT_S).token > token
        output(capsys, "drain", *at(cluster.nodes[left]))
        process = cluster.nodes[left].process
        assert process is not None
        assert process.wait(WAIT_S) == 0
