"""The conformance adapter of the Python client: lines in, lines out (conformance/ADAPTER.md).

The verbs are in verbs.py, once for both APIs: coroutines, which under the sync API never suspend,
so that they run to their end in one step, in the main thread or in one of their own.
"""

from __future__ import annotations

import ast
import asyncio
import concurrent.futures
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

from verbs import Fields, Unsupported, Verbs, judge

CLOSE_SECONDS = 2.0
RESET_SECONDS = 5.0
Answer = tuple[str, Fields]
Verb = Coroutine[Any, Any, Fields | None]
Call = concurrent.futures.Future[Answer]


def parse_item(text: str) -> int | bytes | str:
    if text.startswith("x:"):
        return bytes.fromhex(text[2:])
    if run := re.fullmatch(r"r:([0-9a-f]{2})\*(\d+)", text):
        return bytes.fromhex(run[1]) * int(run[2])
    return int(text) if re.fullmatch(r"-?\d+", text) else text


def parse(line: str) -> tuple[str, str, Fields]:
    number, verb, *parts = line.rstrip("\n").split(" ")
    fields: Fields = {}
    for name, _, value in (part.partition("=") for part in parts):
        items = [parse_item(item) for item in value.split(",")] if value else []
        fields[name] = items[0] if len(items) == 1 else items
    return number, verb, fields


def show(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ",".join(show(item) for item in value)
    return f"x:{value.hex()}" if isinstance(value, bytes) else str(value)


def drive(verb: Verb) -> Answer:
    """Run a verb over the sync API, where nothing suspends."""
    try:
        verb.send(None)
    except StopIteration as done:
        return "ok", done.value or {}
    except BaseException as error:
        return judge(error)
    return "fail", {"text": b"a call of the sync API has to be awaited"}


def outcome(task: asyncio.Task[Fields | None]) -> Answer:
    if task.cancelled():
        return judge(asyncio.CancelledError())
    error = task.exception()
    return judge(error) if error else ("ok", task.result() or {})


class Adapter:
    """Runs verbs: on the event loop, in the main thread, or in a thread of their own."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()
        self.verbs = Verbs()
        self.calls: dict[str, Call] = {}
        self.tasks: dict[str, asyncio.Task[Fields | None]] = {}
        self.started: list[Call] = []
        self.baseline = self.counts()

    def run(self, verb: str, fields: Fields) -> Answer:
        own: Callable[[Fields], Answer] | None = getattr(self, f"own_{verb}", None)
        if own is not None:
            return own(fields)
        method: Callable[[Fields], Verb] | None = getattr(self.verbs, f"do_{verb}", None)
        if method is None:
            return "unsupported", {}
        api = self.verbs.api_of(fields)
        detach, cancel_after = fields.pop("detach", 0), fields.pop("cancel_after_ms", None)
        if api == "sync" and not detach:
            return self.in_main_thread(method(fields), cancel_after)
        if api == "sync" and cancel_after is not None:
            raise Unsupported
        name = fields.get("as", "")
        call = self.start(api, name, method(fields), cancel_after)
        if not detach:
            return call.result()
        self.calls[name] = call
        self.started.append(call)
        return "ok", {}

    def in_main_thread(self, verb: Verb, cancel_after: int | None) -> Answer:
        if cancel_after is None:
            return drive(verb)
        answer: Answer = ("err", {"kind": "cancelled"})
        main = threading.main_thread().ident or 0
        timer = threading.Timer(
            cancel_after / 1000, lambda: signal.pthread_kill(main, signal.SIGINT)
        )
        try:
            timer.start()
            answer = drive(verb)
            timer.cancel()
            timer.join()
        except KeyboardInterrupt:
            pass  # It came when the call had ended, which it must not affect.
        return answer

    def start(self, api: str, name: str, verb: Verb, cancel_after: int | None) -> Call:
        call: Call = concurrent.futures.Future()
        if api == "sync":
            threading.Thread(target=lambda: call.set_result(drive(verb)), daemon=True).start()
            return call

        def begin() -> None:
            task = self.tasks[name] = self.loop.create_task(verb)
            task.add_done_callback(lambda done: call.set_result(outcome(done)))
            if cancel_after is not None:
                self.loop.call_later(cancel_after / 1000, task.cancel)

        self.loop.call_soon_threadsafe(begin)
        return call

    def own_await(self, fields: Fields) -> Answer:
        try:
            return self.calls[fields["as"]].result(fields.get("timeout_ms", 30_000) / 1000)
        except concurrent.futures.TimeoutError:
            return "err", {"kind": "pending"}

    def own_cancel(self, fields: Fields) -> Answer:
        name = fields["as"]
        if name not in self.calls:
            return "fail", {"text": b"there is no background call of this name"}
        # A sync call runs in a thread, which Python can't interrupt.
        self.loop.call_soon_threadsafe(lambda: self.tasks[name].cancel())
        return "ok", {}

    def own_fork(self, fields: Fields) -> Answer:
        reading, writing = os.pipe()
        if os.fork() == 0:
            if self.verbs.api_of(fields) == "sync":
                _, answer = drive(self.verbs.after_fork(fields))
            else:
                answer = asyncio.run(self.verbs.after_fork(fields))
            os.write(writing, repr(answer).encode())
            os._exit(0)
        os.close(writing)
        os.wait()
        with open(reading) as pipe:
            return "ok", ast.literal_eval(pipe.read() or "{}")

    def counts(self) -> Fields:
        descriptors = []
        for number in os.listdir("/proc/self/fd") if os.path.isdir("/proc/self/fd") else []:
            try:
                descriptors.append(os.readlink(f"/proc/self/fd/{number}"))
            except OSError:
                continue  # The descriptor of the listing itself is gone by now.
        return {
            "threads": threading.active_count(),
            "tasks": len(asyncio.all_tasks(self.loop)),
            "sockets": sum(name.startswith("socket:") for name in descriptors),
        }

    def own_leak_check(self, _: Fields) -> Answer:
        deadline = time.monotonic() + CLOSE_SECONDS
        while (now := self.counts()) != self.baseline and time.monotonic() < deadline:
            time.sleep(0.01)
        return "ok", {name: max(0, now[name] - self.baseline[name]) for name in now}

    def own_reset(self, _: Fields) -> Answer:
        deadline = time.monotonic() + RESET_SECONDS
        for api, client in self.verbs.opened:
            self.started.append(self.start(api, "", self.verbs.close(client), None))
        _done, pending = concurrent.futures.wait(self.started, deadline - time.monotonic())
        self.verbs.forget()
        self.calls.clear()
        self.tasks.clear()
        self.started.clear()
        if pending:
            return "fail", {"text": f"{len(pending)} calls did not end".encode()}
        return "ok", {}


def main() -> None:
    # Who starts tests in the background may have them ignore it, and it is how calls are cancelled.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    adapter = Adapter()
    for line in sys.stdin:
        number, verb, fields = parse(line)
        try:
            status, answer = adapter.run(verb, fields)
        except Exception as error:
            status, answer = judge(error)
        words = [number, status, *(f"{name}={show(value)}" for name, value in answer.items())]
        print(" ".join(words), flush=True)
    adapter.own_reset({})
    # Whatever a client left behind must not keep the process alive, nor change its exit code.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
