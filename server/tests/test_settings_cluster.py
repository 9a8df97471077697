"""Settings of durable mode and of a cluster: what goes together, and what each refusal says."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_settings import GOOD_SECRET, corrected, refusal_of, settings_of
from ticketing_server.addresses import Address
from ticketing_server.settings_load import reread_cluster_secrets

THREE = "127.0.0.1:7000/127.0.0.1:8000,127.0.0.1:7001/127.0.0.1:8001,127.0.0.1:7002/[::1]:8002"
FAR = THREE.replace("127.0.0.1:7002", "10.0.0.3:7002")


@pytest.fixture
def data(tmp_path: Path) -> str:
    return str(tmp_path / "data")


def test_memory_mode_needs_nothing() -> None:
    settings = settings_of()
    assert (settings.mode, settings.data_dir, settings.cluster) == ("memory", None, None)


def test_a_data_dir_alone_is_durable_mode(data: str) -> None:
    settings = settings_of(data_dir=data, failover_grace="7s")
    assert (settings.mode, settings.data_dir) == ("durable", Path(data))
    assert settings.failover_grace_ms == 7_000
    assert settings.limits.keepalive_s == 5
    assert not Path(data).exists()


def test_a_node_listens_where_the_cluster_says(data: str) -> None:
    settings = settings_of(cluster=THREE, slot="2", data_dir=data)
    assert settings.mode == "cluster"
    assert settings.listen == (Address("::1", 8002),)
    assert settings.limits.keepalive_s == 1
    cluster = settings.cluster
    assert cluster is not None
    assert cluster.slot == 2
    assert cluster.peers == tuple(Address("127.0.0.1", port) for port in (7000, 7001, 7002))
    assert cluster.peer_listen == (Address("127.0.0.1", 7002),)
    assert cluster.clients[2] == Address("::1", 8002)


def test_what_is_given_goes_before_what_the_cluster_says(data: str) -> None:
    settings = settings_of(
        cluster=THREE, slot="0", data_dir=data, listen="127.0.0.1:9", keepalive="3s",
        peer_listen="127.0.0.1:10", advertise="localhost:11",
    )  # fmt: skip
    assert settings.listen == (Address("127.0.0.1", 9),)
    assert settings.limits.keepalive_s == 3
    cluster = settings.cluster
    assert cluster is not None
    assert cluster.peer_listen == (Address("127.0.0.1", 10),)
    assert cluster.clients[0] == Address("localhost", 11)
    assert cluster.clients[1] == Address("127.0.0.1", 8001)


@pytest.mark.parametrize("count", [1, 2, 4, 6])
def test_a_cluster_has_three_or_five_nodes(count: int, data: str) -> None:
    nodes = ",".join(f"127.0.0.1:{7000 + n}/127.0.0.1:{8000 + n}" for n in range(count))
    text = refusal_of(cluster=nodes, slot="0", data_dir=data)
    assert f"has {count} nodes; takes 3 or 5" in text
    assert text.startswith("--cluster: got ")


@pytest.mark.parametrize(
    ("cluster", "said"),
    [
        ("127.0.0.1:7000", "takes 3 or 5 times peer_host:port/client_host:port"),
        ("0.0.0.0:1/127.0.0.1:2,127.0.0.1:3/127.0.0.1:4,127.0.0.1:5/127.0.0.1:6", "takes 3 or 5"),
        ("127.0.0.1:0/127.0.0.1:2,127.0.0.1:3/127.0.0.1:4,127.0.0.1:5/127.0.0.1:6", "takes 3"),
        (THREE.replace("7001", "7000"), "is the address of slot 0 for peers and of slot 1"),
        (THREE.replace("8001", "7001"), "of slot 1 for peers and of slot 1 for clients"),
    ],
)
def test_addresses_that_lead_nowhere_or_twice_are_refused(
    cluster: str, said: str, data: str
) -> None:
    assert said in refusal_of(cluster=cluster, slot="0", data_dir=data)


def test_slot_and_cluster_go_together(data: str) -> None:
    text = refusal_of(cluster=THREE, data_dir=data)
    assert "--cluster: takes --slot too, this node's place in it, 0 to 2" in text
    assert corrected(text)[1]["slot"] == ["0"]
    text = refusal_of(cluster=THREE, slot="3", data_dir=data)
    assert "--slot: got 3, takes 0 to 2, as --cluster has 3 nodes" in text
    assert "--slot: got '5', takes a whole number, 0 to 4" in refusal_of(slot="5")
    assert "TICKETING_CLUSTER: takes --data-dir too" in refusal_of(
        {"TICKETING_CLUSTER": THREE}, slot="1"
    )


@pytest.mark.parametrize(
    "given",
    [
        {"slot": "1"},
        {"peer_listen": "127.0.0.1:7000"},
        {"advertise": "127.0.0.1:7000"},
        {"cluster_secret_file": "x"},
        {"peer_tls_ca": "x"},
    ],
)
def test_what_has_no_effect_without_a_cluster_is_refused(given: dict[str, str], data: str) -> None:
    text = refusal_of(data_dir=data, **given)
    assert "without --cluster, where it has no effect" in text
    settings_of(**{k.replace("-", "_"): v for k, v in corrected(text)[1].items()})


def test_nodes_beyond_loopback_need_a_secret_of_their_own(data: str, tmp_path: Path) -> None:
    secret = {"TICKETING_SECRET": GOOD_SECRET}
    text = refusal_of(secret, cluster=FAR, slot="0", data_dir=data)
    assert "got the peer address 10.0.0.3:7002, which other machines may reach" in text
    assert "cluster-secret-file" in corrected(text)[1]
    both = {**secret, "TICKETING_CLUSTER_SECRET": GOOD_SECRET[::-1]}
    cluster = settings_of(both, cluster=FAR, slot="0", data_dir=data).cluster
    assert cluster is not None
    assert [s.value for s in cluster.secrets] == [GOOD_SECRET[::-1].encode()]
    path = tmp_path / "cluster.secret"
    path.write_text(f"one {GOOD_SECRET}\n")
    settings = settings_of(cluster=FAR, slot="0", data_dir=data, cluster_secret_file=str(path))
    assert any("--peer-tls-" in warning for warning in settings.warnings)
    path.chmod(0o604)
    path.write_text("one short\n")
    settings = settings_of(cluster=FAR, slot="0", data_dir=data, cluster_secret_file=str(path))
    assert "of the cluster's: the secret 'one' has fewer than 16 bytes" in str(settings.warnings)
    assert f"every user of this machine can read or write {path}" in settings.warnings
    path.write_text(f"two {GOOD_SECRET}\n")
    assert settings.cluster is not None
    assert [s.name for s in reread_cluster_secrets(settings.cluster)] == ["two"]


def test_peer_tls_takes_three_files(data: str) -> None:
    text = refusal_of(cluster=THREE, slot="0", data_dir=data, peer_tls_cert="a")
    assert "take" in text
    assert "not given: --peer-tls-key, --peer-tls-ca" in text
    settings = settings_of(
        cluster=THREE, slot="0", data_dir=data, peer_tls_cert="a", peer_tls_key="b",
        peer_tls_ca="c",
    )  # fmt: skip
    assert settings.cluster is not None
    assert settings.cluster.tls is not None
    assert settings.cluster.tls.ca_flag == "--peer-tls-ca"


def test_a_data_dir_is_a_folder_or_can_be_made(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    assert "which is no folder" in refusal_of(data_dir=str(file))
    assert "whose parent folder does not exist" in refusal_of(data_dir=str(tmp_path / "a" / "b"))
    assert settings_of(data_dir=str(tmp_path)).data_dir == tmp_path


def test_graces_that_would_have_no_effect_are_refused(data: str) -> None:
    assert "without --data-dir, where it has no effect" in refusal_of(failover_grace="5s")
    text = refusal_of(data_dir=data, restart_grace="30s")
    assert "forgets nothing over a restart; takes 0 or to be left out" in text
    settings_of(data_dir=data, restart_grace="0")


def test_durable_mode_beyond_loopback_needs_no_restart_grace(data: str) -> None:
    secret = {"TICKETING_SECRET": GOOD_SECRET}
    assert settings_of(secret, listen="0.0.0.0:5225", data_dir=data).mode == "durable"
    assert "or --data-dir, which forgets nothing" in refusal_of(secret, listen="0.0.0.0:5225")
