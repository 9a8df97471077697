"""The verbs `load …`: clients that take and give back tickets while a case does something else."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from ticketing_conformance.adapter import Adapter, AdapterBroken, Answer
from ticketing_conformance.cluster.history import (
    Failure,
    History,
    Holding,
    faults,
    first_grants_ms,
    parse,
    percentile,
    summary,
)
from ticketing_conformance.cluster.nodes import now_ns
from ticketing_conformance.cluster_verbs import ClusterVerbs
from ticketing_conformance.context import SECRET, Arguments, Context, StepFailed
from ticketing_conformance.values import Value

READY_SECONDS = 60.0
END_SECONDS = 30.0
OPEN_MS = 30_000
CLIENT = "load"


class Load(Protocol):
    """Something that uses tickets until it is ended."""

    def end(self) -> History:
        """Stop it, and return what it saw."""


class ProcessLoad:
    """Many Python clients in a process of their own."""

    def __init__(self, url: str, history: Path, options: dict[str, int]) -> None:
        self._history = history
        words = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
        self._errors = history.with_suffix(".log").open("w+b")
        module = "ticketing_conformance.cluster.load"
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, f"--url={url}", f"--history={history}", *words],
            env={**os.environ, "TICKETING_SECRET": SECRET.decode("ascii")},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
        )
        watchdog = threading.Timer(READY_SECONDS, self._process.kill)
        watchdog.start()
        assert self._process.stdout is not None
        said = self._process.stdout.readline()
        watchdog.cancel()
        if said != b"ready\n":
            self.close()
            raise StepFailed(f"the load did not begin: {self._log()}")

    def _log(self) -> str:
        self._errors.seek(0)
        return self._errors.read().decode("utf-8", "replace")[-1000:]

    def end(self) -> History:
        """Close its stdin, and read what it wrote."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            code = self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self.close()
            raise StepFailed(f"the load does not end: {self._log()}") from None
        if code:
            raise StepFailed(f"the load ended with {code}: {self._log()}")
        return parse(self._history.read_text(encoding="utf-8"))

    def close(self) -> None:
        """Kill it."""
        self._process.kill()
        self._process.wait(END_SECONDS)


class MemberLoad:
    """One client of some language, driven through its adapter by a thread."""

    def __init__(self, name: str, adapter: Adapter, options: dict[str, int], seed: str) -> None:
        self._name = name
        self._adapter = adapter
        self._options = options
        self._random = random.Random(seed)
        self._history = History()
        self._ending = threading.Event()
        self._broken: AdapterBroken | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._ending.is_set():
                self._turn()
        except AdapterBroken as error:
            self._broken = error

    def _turn(self) -> None:
        options = self._options
        fields: dict[str, Any] = {
            "client": CLIENT,
            "key": f"load-{self._random.randrange(options['keys'])}".encode(),
            "lease_ms": options["lease_ms"],
            "wait_ms": options["wait_ms"],
            "as": CLIENT,
        }
        answer = self._ask("acquire", fields)
        began_ns = now_ns()
        if answer.status != "ok":
            # A wait may end, and a ticket may come too late: that is no failure.
            if answer.fields.get("kind") not in ("timeout", "held", "lost"):
                self._failed("acquire", answer)
            return
        asked_ns = now_ns()
        ticket = self._ask("ticket", {"ticket": CLIENT})
        until_ns = asked_ns + int(str(ticket.fields.get("remaining_ms", 0))) * 1_000_000
        self._ending.wait(self._random.uniform(0, options["hold_ms"] / 1000))
        ended_ns = min(now_ns(), until_ns)
        released = self._ask("release", {"ticket": CLIENT})
        kind = released.fields.get("kind")
        if released.status != "ok" and kind not in ("lost", "not_held"):
            self._failed("release", released)
        was_lost = kind in ("lost", "not_held") and now_ns() < until_ns
        if ended_ns > began_ns:
            self._history.holdings.append(
                Holding(
                    who=self._name,
                    keys=(fields["key"].decode(),),
                    token=int(str(answer.fields["token"])),
                    began_ns=began_ns,
                    ended_ns=ended_ns,
                    lost=str(kind) if was_lost else "",
                    was_released=released.status == "ok",
                )
            )

    def _ask(self, verb: str, fields: dict[str, Any]) -> Answer:
        return self._adapter.ask(verb, fields, END_SECONDS)

    def _failed(self, call: str, answer: Answer) -> None:
        self._history.failures.append(Failure(self._name, call, answer.text(), now_ns()))

    def end(self) -> History:
        """Let it end what it is at, and return what it saw."""
        self._ending.set()
        self._thread.join(2 * END_SECONDS)
        if self._thread.is_alive():
            raise StepFailed(f"{self._name} does not end")
        if self._broken is not None:
            raise self._broken
        self._adapter.ask("close", {"client": CLIENT})
        return self._history

    def close(self) -> None:
        """End it where the case failed; its adapter is looked after by others."""
        self._ending.set()
        self._thread.join(END_SECONDS)


class LoadVerbs:
    """The loads of one run, and what became of them."""

    def __init__(
        self,
        context: Context,
        clusters: ClusterVerbs,
        members: Callable[[], dict[str, tuple[Adapter, str]]],
    ) -> None:
        """`members` gives every member's adapter and API, by its column's name."""
        self._context = context
        self._clusters = clusters
        self._members = members
        self._loads: dict[str, list[Load]] = {}
        self._histories: dict[str, History] = {}

    def do(self, arguments: Arguments) -> dict[str, Any]:
        """Carry out one step; returns the fields of its answer."""
        word = arguments.word(0, "what to do")
        method = getattr(self, f"_do_{word}", None)
        if method is None:
            raise StepFailed(f"load has no verb {word}")
        result: dict[str, Any] = method(arguments) or {}
        arguments.finish()
        return result

    def _url(self, arguments: Arguments) -> str:
        return arguments.text("url", self._context.variables.get("url"))

    def _do_start(self, arguments: Arguments) -> None:
        """`load start as=l clients=4 workers=8 keys=8 lease_ms=10000 hold_ms=10`, and more."""
        name, url = arguments.text("as", "l"), self._url(arguments)
        path = self._context.directory / f"{name}.history"
        options = {key: int(value) for key, value in arguments.rest().items() if key != "as"}
        load = ProcessLoad(url, path, options)
        self._context.closers.append(load.close)
        self._loads[name] = [load]

    def _do_members(self, arguments: Arguments) -> None:
        """Every member uses tickets, until `load stop`: no other step may use it."""
        name, url = arguments.text("as", "m"), self._url(arguments)
        options = {"keys": 4, "lease_ms": 10_000, "hold_ms": 20, "wait_ms": 15_000}
        options = {key: arguments.integer(key, value) for key, value in options.items()}
        loads: list[Load] = []
        for who, (adapter, api) in self._members().items():
            fields: dict[str, Value] = {"as": CLIENT, "api": api, "secret": SECRET}
            fields |= {"url": url.encode(), "connect_for_ms": OPEN_MS}
            opened = adapter.ask("open", fields, 2 * END_SECONDS)
            if opened.status != "ok":
                raise StepFailed(f"{who} can't open: {opened.text()}")
            load = MemberLoad(who, adapter, options, f"{name}.{who}")
            self._context.closers.append(load.close)
            loads.append(load)
        self._loads[name] = loads

    def _do_stop(self, arguments: Arguments) -> dict[str, Any]:
        """`load stop l m`: end them and judge all that their clients saw together.

        It fails on what no correct service does; the answer has `tickets` and `failed` calls.
        """
        names = arguments.words[1:] or ["l"]
        history = History()
        for name in names:
            for load in self._loads.pop(name, []):
                history.add(load.end())
        self._histories[names[0]] = history
        if found := faults(history):
            raise StepFailed(f"{len(found)} faults: {summary(found)}")
        texts = [f"{f.who} {f.call}: {f.text}" for f in history.failures]
        return {
            "tickets": len(history.holdings),
            "released": sum(one.was_released for one in history.holdings),
            "failed": len(history.failures),
            "text": summary(texts).encode(),
        }

    def _do_failover(self, arguments: Arguments) -> dict[str, Any]:
        """`load failover l of=k`: from each mark to the first ticket of a later leader."""
        name = arguments.word(1, "the name of a load")
        cluster = self._clusters.clusters[arguments.text("of", "k")]
        times = first_grants_ms(self._histories[name].holdings, cluster.marks)
        found = [ms for ms in times if ms is not None]
        if len(found) < len(times) or not found:
            raise StepFailed(f"after {len(times) - len(found)} of {len(times)} no ticket came")
        return {
            "count": len(found),
            "p50_ms": round(percentile(found, 50)),
            "p95_ms": round(percentile(found, 95)),
            "max_ms": round(max(found)),
        }
