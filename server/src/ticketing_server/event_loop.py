"""Which event loop runs: uvloop where it is installed and not refused, else asyncio's own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ticketing_server.settings import Settings
from ticketing_server.settings_load import SettingsError

LoopFactory = Callable[[], asyncio.AbstractEventLoop]


def loop_factory(settings: Settings) -> LoopFactory:
    """What makes the loop of --loop; SettingsError where uvloop is asked for and missing."""
    if settings.loop == "asyncio":
        return asyncio.new_event_loop
    try:
        import uvloop
    except ImportError:
        if settings.loop == "uvloop":
            raise SettingsError(
                "--loop: got 'uvloop', which is not installed; takes auto, asyncio, or uvloop after"
                " pip install 'ticketing-server[fast]'"
            ) from None
        return asyncio.new_event_loop
    factory: LoopFactory = uvloop.new_event_loop
    return factory
