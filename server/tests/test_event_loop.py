"""Which event loop runs with and without uvloop."""

from __future__ import annotations

import asyncio
import sys

import pytest
from ticketing_server.event_loop import loop_factory
from ticketing_server.settings import Settings
from ticketing_server.settings_load import SettingsError


def test_asyncio_is_asyncio() -> None:
    assert loop_factory(Settings(loop="asyncio")) is asyncio.new_event_loop


@pytest.mark.parametrize("loop", ["auto", "uvloop"])
def test_uvloop_where_it_is_installed(loop: str) -> None:
    uvloop = pytest.importorskip("uvloop", reason="uvloop is not installed")
    assert loop_factory(Settings(loop=loop)) is uvloop.new_event_loop


def test_without_uvloop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)
    assert loop_factory(Settings(loop="auto")) is asyncio.new_event_loop
    with pytest.raises(SettingsError, match="--loop: got 'uvloop', which is not installed; takes"):
        loop_factory(Settings(loop="uvloop"))
