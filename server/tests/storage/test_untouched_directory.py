"""What is written to an untouched directory is seen there, and what is below stays."""

from __future__ import annotations

from pathlib import Path

import pytest
from ticketing_server.storage.directory import put
from ticketing_server.storage.real_directory import RealDirectory
from ticketing_server.storage.untouched_directory import UntouchedDirectory


def test_changes_are_seen_and_not_made(tmp_path: Path) -> None:
    (tmp_path / "kept").write_bytes(b"0123")
    (tmp_path / "gone").write_bytes(b"x")
    directory = UntouchedDirectory(RealDirectory(tmp_path))
    assert directory.label == str(tmp_path)
    directory.write_at("kept", 2, b"ab")
    directory.write_at("kept", 6, b"c")
    directory.unlink("gone")
    directory.create("made", 3)
    put(directory, "put", b"content")
    directory.rename("made", "renamed")
    directory.sync("kept")
    assert directory.list() == ["kept", "put", "renamed"]
    assert directory.read("kept") == b"01ab\0\0c"
    assert [directory.size(name) for name in directory.list()] == [7, 7, 3]
    with pytest.raises(OSError, match="gone"):
        directory.read("gone")
    found = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert found == {"kept": b"0123", "gone": b"x"}
    assert UntouchedDirectory(RealDirectory(tmp_path, is_reader=True)).size("kept") == 4
