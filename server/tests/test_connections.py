"""What the engine keeps of a connection."""

from __future__ import annotations

import pytest
from ticketing_server.connections import Connection
from ticketing_server.engine import Peer
from ticketing_server.session import Session


@pytest.mark.parametrize(
    ("label", "language"),
    [
        ("host:12;python/0.1.0", "python"),
        ("a;b;go/1", "go"),
        ("rust/1", "rust"),
        ("host;cobol/1", "other"),
        ("", "other"),
    ],
)
def test_language_is_what_the_label_names(label: str, language: str) -> None:
    connection = Connection(1, Peer("unix", "/run/x"), Session(bytes(32)), 0)
    connection.label = label
    assert connection.kind == (4, "unix", language)
