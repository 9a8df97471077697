"""The verbs of the adapter, over both APIs of the client's public interface."""

from __future__ import annotations

import asyncio
import importlib.metadata
import inspect
import platform
import struct
import time
from typing import Any

import ticketing
import ticketing.sync
from ticketing import _constants_gen as constants
from ticketing._core import codec, handshake

Fields = dict[str, Any]

FEATURES = [
    "async",
    "sync",
    "codec_both",
    "detach",
    "async:cancel",
    "cancel_after",
    "scope",
    "async:scope_cancel",
    "background",
    "renewal",
    "events",
    "fork",
    "tls",
    "mtls",
    "unix",
    "ipv6",
    "fractional",
    "nan",
    "odd_text",
    "contend",
]
TEXTS = ("url", "label", "name", "key_prefix")


class BodyError(Exception):
    """What the body of a scope raises by itself."""


class Ended(Exception):
    """An end that is an answer of its own: its kind, and what became of the body."""

    def __init__(self, kind: str, body: str = "") -> None:
        super().__init__(kind)
        self.fields = {"kind": kind, **({"body": body} if body else {})}


class Unsupported(Exception):
    """An order that the client can't carry out."""


def judge(error: BaseException) -> tuple[str, Fields]:
    """The answer that an error is."""
    text = {"text": f"{error}".encode("utf-8", "backslashreplace")}
    if isinstance(error, ticketing.TicketingError):
        return "err", {"kind": error.kind, **text}
    if isinstance(error, asyncio.CancelledError | KeyboardInterrupt):
        return "err", {"kind": "cancelled"}
    if isinstance(error, codec.Malformed | struct.error):
        return "err", {"kind": "malformed", **text}
    if isinstance(error, BodyError):
        return "err", {"kind": "body"}
    if isinstance(error, Ended):
        return "err", error.fields
    if isinstance(error, Unsupported):
        return "unsupported", {}
    return "fail", {"text": type(error).__name__.encode() + b": " + text["text"]}


async def settled(value: Any) -> Any:
    """What an API returned: of the async one awaited, of the sync one as it is."""
    return await value if inspect.isawaitable(value) else value


def as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def as_bytes(key: str | bytes) -> bytes:
    return key.encode() if isinstance(key, str) else key


def key_of(key: bytes, text: int) -> str | bytes:
    return key.decode("utf-8", "surrogateescape") if text else key


def ticket_fields(ticket: Any) -> Fields:
    return {
        "key": as_bytes(ticket.key),
        "keys": [as_bytes(key) for key in ticket.keys],
        "token": ticket.token,
        "remaining_ms": max(0, int(ticket.remaining * 1000)),
        "lost": int(ticket.is_lost),
    }


def times(fields: Fields) -> Fields:
    options: Fields = {}
    for field, option in (("lease", "lease"), ("wait", "wait_timeout")):
        if f"{field}_ms" in fields:
            options[option] = float(fields[f"{field}_ms"]) / 1000
        if f"{field}_ns" in fields:
            options[option] = fields[f"{field}_ns"] / 1e9
    if "auto_extend" in fields:
        options["auto_extend"] = bool(fields["auto_extend"])
    return options


def tls_of(fields: Fields) -> ticketing.TlsOptions | None:
    options = {"tls_ca": "ca_file", "tls_cert": "cert_file", "tls_key": "key_file"}
    options["tls_server_name"] = "server_name"
    given = {options[name]: fields.pop(name).decode() for name in options if name in fields}
    return ticketing.TlsOptions(**given) if given else None


class Verbs:
    """The clients and tickets that the harness named, and what it can ask of them."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        self.clients: dict[str, tuple[str, Any]] = {}
        self.tickets: dict[str, tuple[str, Any]] = {}
        self.seen: dict[str, list[str]] = {}
        self.opened: list[tuple[str, Any]] = []

    def api_of(self, fields: Fields) -> str:
        if "api" in fields:
            return str(fields["api"])
        if fields.get("ticket") in self.tickets:
            return self.tickets[fields["ticket"]][0]
        return self.clients.get(fields.get("client", "c"), ("async", None))[0]

    def client(self, fields: Fields) -> Any:
        return self.clients[fields.get("client", "c")][1]

    def ticket(self, fields: Fields) -> Any:
        return self.tickets[fields.get("ticket", "t")][1]

    def keep(self, fields: Fields, ticket: Any) -> Fields:
        self.tickets[fields.get("as", "t")] = (self.api_of(fields), ticket)
        return ticket_fields(ticket)

    # Codec plane.

    async def do_hello(self, _: Fields) -> Fields:
        return {
            "protocol": 1,
            "language": "python",
            "client": importlib.metadata.version("ticketing-client"),
            "runtime": platform.python_version(),
            "features": FEATURES,
            "digest": constants.SPEC_DIGEST,
        }

    async def do_encode(self, fields: Fields) -> Fields:
        direction, frame = fields.pop("dir"), fields.pop("frame")
        if "keys" in fields:
            fields["keys"] = as_list(fields["keys"])
        return {"wire": codec.encode(direction, frame, fields)}

    async def do_decode(self, fields: Fields) -> Fields:
        if fields.get("frame") == "greeting":
            greeting = handshake.parse_greeting(fields["wire"])
            names = ("min_version", "max_version", "mode", "slot")
            values = {name: getattr(greeting, name) for name in names}
            return {"frame": "greeting", **values, "nonce": greeting.raw[-16:]}
        name, decoded = codec.decode(fields["dir"], fields["wire"])
        return {"frame": name, **decoded}

    async def do_mac(self, fields: Fields) -> Fields:
        names = [
            "secret",
            "greeting",
            "version",
            "client_id",
            "connection",
            "client_nonce",
            "label",
        ]
        return {"mac": handshake.client_mac(*(fields[name] for name in names))}

    async def do_proof(self, fields: Fields) -> Fields:
        names = [
            "secret",
            "greeting",
            "client_nonce",
            "role",
            "keepalive_s",
            "fingerprint",
            "leader",
        ]
        return {"proof": handshake.server_proof(*(fields[name] for name in names))}

    async def do_nonce(self, fields: Fields) -> Fields:
        return {"nonce": handshake.client_nonce(fields["seed"], fields["connection"])}

    # API plane.

    async def do_open(self, fields: Fields) -> None:
        api, name = fields.pop("api"), fields.pop("as", "c")
        seen: list[str] = []
        options: Fields = {"on_event": lambda event: seen.append(event.kind)}
        if (tls := tls_of(fields)) is not None:
            options["tls"] = tls
        for field, value in fields.items():
            if field.endswith("_ms"):
                option = "wait_timeout" if field == "wait_ms" else field.removesuffix("_ms")
                options[option] = value / 1000
            elif field == "release_on_close":
                options[field] = bool(value)
            else:
                options[field] = value.decode() if field in TEXTS else value
        connect = ticketing.sync.connect if api == "sync" else ticketing.connect
        client = await settled(connect(**options))
        self.clients[name], self.seen[name] = (api, client), seen
        self.opened.append((api, client))

    def acquiring(self, fields: Fields) -> Any:
        client, text, options = self.client(fields), fields.get("text", 0), times(fields)
        if "keys" in fields:
            # The client has a try form for one key; for a set a wait of 0 is its try.
            if fields.get("try"):
                options["wait_timeout"] = 0
            keys = [key_of(key, text) for key in as_list(fields["keys"])]
            return client.acquire_set(keys, **options)
        key = key_of(fields["key"], text)
        return (client.try_acquire if fields.get("try") else client.acquire)(key, **options)

    async def do_acquire(self, fields: Fields) -> Fields:
        ticket = await settled(self.acquiring(fields))
        if ticket is None:
            raise ticketing.HeldError("the key is held")
        return self.keep(fields, ticket)

    async def do_adopt(self, fields: Fields) -> Fields:
        adopting = self.client(fields).adopt(fields["reference"], **times(fields))
        return self.keep(fields, await settled(adopting))

    async def do_release(self, fields: Fields) -> None:
        await settled(self.ticket(fields).release())

    async def do_extend(self, fields: Fields) -> Fields:
        ticket = self.ticket(fields)
        await settled(ticket.extend(**times(fields)))
        return {"remaining_ms": max(0, int(ticket.remaining * 1000))}

    async def do_hand_over(self, fields: Fields) -> Fields:
        return {"reference": await settled(self.ticket(fields).hand_over())}

    async def do_ticket(self, fields: Fields) -> Fields:
        return ticket_fields(self.ticket(fields))

    async def do_wait_lost(self, fields: Fields) -> None:
        ticket, seconds = self.ticket(fields), fields.get("timeout_ms", 30_000) / 1000
        if self.api_of(fields) == "sync":
            lost = ticket.wait_lost(timeout=seconds)
        else:
            waiting = asyncio.ensure_future(ticket.wait_lost())
            await asyncio.wait([waiting], timeout=seconds)
            lost = waiting.done() and waiting.result()
            waiting.cancel()
        if not lost:
            raise Ended("pending")

    async def do_ping(self, fields: Fields) -> None:
        await settled(self.client(fields).ping())

    async def close(self, client: Any) -> None:
        await settled(client.close())

    async def do_close(self, fields: Fields) -> None:
        await self.close(self.client(fields))

    async def do_events(self, fields: Fields) -> Fields:
        seen = self.seen[fields.get("client", "c")]
        words, seen[:] = list(seen), []
        return {"events": words}

    async def do_scope(self, fields: Fields) -> Fields:
        seconds, ended = fields.get("hold_ms", 0) / 1000, ""
        scope = self.acquiring(fields)
        try:
            if self.api_of(fields) == "sync":
                with scope as ticket:
                    ended = "done"
                    self.keep(fields, ticket)
                    time.sleep(seconds)
                    if fields.get("raise"):
                        raise BodyError
            else:
                async with scope as ticket:
                    ended = "done"
                    self.keep(fields, ticket)
                    try:
                        await asyncio.sleep(seconds)
                    except asyncio.CancelledError:
                        ended = "cancelled"
                        raise
                    if fields.get("raise"):
                        raise BodyError
        except ticketing.LostError:
            raise Ended("lost", ended) from None
        return {"body": ended}

    async def after_fork(self, fields: Fields) -> Fields:
        """What the child of a fork does with what it inherited."""
        answer = {"child": "ok", "ticket": "ok"}
        try:
            await settled(self.ticket(fields).release())
        except ticketing.TicketingError as error:
            answer["ticket"] = error.kind
        client = self.client(fields)
        try:
            ticket = await settled(client.acquire(fields["key"], lease=10))
            await settled(ticket.release())
            await settled(client.close())
        except ticketing.TicketingError as error:
            answer["child"] = error.kind
        return answer

    async def do_contend(self, fields: Fields) -> None:
        path = fields["file"].decode()
        for _ in range(fields["times"]):
            ticket = await settled(self.acquiring(fields))
            with open(path, "r+") as counter:
                number = int(counter.read() or "0")
                counter.seek(0)
                counter.write(str(number + 1))
            with open(f"{path}.tokens", "a") as tokens:
                tokens.write(f"{ticket.token}\n")
            await settled(ticket.release())
