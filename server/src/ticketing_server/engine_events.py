"""How the engine's events look in the log."""

from __future__ import annotations

from ticketing_server.engine import Event
from ticketing_server.log import EventLog, Value

_LEVELS = {
    "connected": "debug",
    "disconnected": "debug",
    "idle_timeout": "info",
    "handshake_timeout": "info",
    "taken_over": "info",
    "drained": "debug",
    "leader_changed": "info",
    "leader_heard": "info",
}
"""What is not listed is a warning: something that an operator may have to act on."""


def log_engine_event(log: EventLog, event: Event, now_s: float) -> None:
    """Write one event; `now_s` is a monotonic time in seconds."""
    fields: dict[str, Value] = {}
    text = ""
    for name, value in event.fields.items():
        if name == "text":
            text = str(value)
        elif name.endswith("_ns") and isinstance(value, int):
            fields[name.removesuffix("_ns") + "_s"] = round(value / 1e9, 3)
        elif isinstance(value, (str, bytes, int, float, tuple)) or value is None:
            fields[name] = value
        else:
            fields[name] = str(value)
    log.event(now_s, _LEVELS.get(event.name, "warning"), event.name, fields, text=text)
