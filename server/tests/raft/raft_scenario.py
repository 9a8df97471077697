"""Scenarios of the Raft core as text: commands, and under each what came of it.

A line that begins with `> ` is a command, the indented lines below it are what it printed, and
everything else is prose. `python raft_scenario.py --rewrite [FILE …]` runs the commands of all
(or these) scenarios and writes anew what they print; whoever did it reads the difference.

Nothing happens by itself: messages wait on their link until a command delivers them, and time
stands until one lets it pass. Disks sync at once unless they are slow. What nodes draw is fixed:
each has a patience, (id - 1) × 110 ms, that comes on top of the 400 ms after which it campaigns.

Commands
    cluster N [window=N] [append=BYTES]   begins: nodes 1 to N, founded in entry 1 of term 1
    log N term T: TERMS         node N anew, with term T and entries of these terms on disk
    term N T                    node N anew, with its own log and a newer term
    patience N MS
    elect N                     time passes for N alone until it campaigns; then as `settle`
    propose N TEXT              one entry; says its index, or why not
    show [N …]                  `*`: not synced yet; (3/1): compacted up to entry 3 of term 1
    peers N                     what leader N knows of the others
    deliver                     all that waits, and what comes of it, until all is quiet
    deliver A->B … [last]       what waits on one link after the other (only its last message)
    drop A->B …   double A->B   lose, or repeat, what waits there
    cut N | A->B   heal         from now on what is sent there is lost
    tick N[,M] MS               MS pass, for these alone, in steps of 50
    run MS                      MS pass in steps of 10 for all: ticks, deliveries; says who leads
    settle                      the same for 100 ms
    gap MS                      MS pass and nobody notices: all are stalled
    pause N   resume N          N is stopped: what is sent to it waits
    disk N slow|fast            a slow disk syncs when told to
    sync N [first]              all saves that wait, or the first one
    crash N   start N           unsynced saves are lost
    transfer N M
    compact N INDEX TRAILING
    empty N   join L N SLOT     an empty node; leader L hears of it
    stamps N                    cluster time of each entry, in ms
    unreachable N M             the driver of N says that a connection to M broke
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from raft_network import CLUSTER, Checks, Disk
from ticketing_server.raft.configuration import Configuration
from ticketing_server.raft.core import Raft, founding_entry
from ticketing_server.raft.messages import (
    BATCH,
    NOOP,
    Append,
    AppendReply,
    Entry,
    HardState,
    Heartbeat,
    HeartbeatReply,
    InstallSnapshot,
    Message,
    TimeoutNow,
    VoteReply,
    VoteRequest,
)
from ticketing_server.raft.state import LEADER, Effects
from ticketing_server.raft.timing import MS, Timing, Windows

SCENARIOS = Path(__file__).parent / "scenarios"
_PROBING_NS = 50 * MS


@dataclass
class Place:
    """One node with its disk and what stands around it."""

    disk: Disk = field(default_factory=Disk)
    core: Raft | None = None
    patience_ns: int = 0
    is_slow: bool = False
    is_paused: bool = False
    held: list[tuple[int, Message]] = field(default_factory=list)
    role: str = ""


def described(message: Message) -> str:
    """Return a message in one line."""
    head = f"{message.sender}->{message.to}"
    if isinstance(message, Append):
        entries = " ".join(f"{entry.index}/{entry.term}" for entry in message.entries)
        after = f"after {message.prev_index}/{message.prev_term}"
        text = f"append {after} [{entries}] commit {message.commit}"
    elif isinstance(message, AppendReply):
        text = f"has up to {message.index}"
        if not message.accepted:
            hint = f"{message.hint_index}/{message.hint_term}"
            text = f"refuses after {message.index}, perhaps {hint}"
    elif isinstance(message, Heartbeat):
        text = f"heartbeat {message.round} commit {message.commit}"
    elif isinstance(message, HeartbeatReply):
        text = f"heard {message.round}"
    elif isinstance(message, VoteRequest):
        kind = "would you vote" if message.pre else "vote"
        by = " by transfer" if message.transfer else ""
        text = f"{kind} for {message.term}{by}? log ends {message.last_index}/{message.last_term}"
    elif isinstance(message, VoteReply):
        answer = "yes" if message.granted else "no"
        text = f"{answer}{' (would)' if message.pre else ''}, for {message.campaign}"
    elif isinstance(message, InstallSnapshot):
        text = f"snapshot of {message.snapshot.index}/{message.snapshot.term}"
    else:
        assert isinstance(message, TimeoutNow)
        text = "take the lead"
    return f"{head} (term {message.term}) {text}"


class Scenario:
    """Runs commands; `out` is what the present one printed."""

    def __init__(self) -> None:
        self.out: list[str] = []
        self.windows = Windows()
        self.configuration = Configuration()
        self._begin()

    def _begin(self) -> None:
        self.now_ns = 0
        self.places: dict[int, Place] = {}
        self.queue: list[Message] = []
        self.cuts: set[tuple[int, int]] = set()
        self.checks = Checks()

    def command(self, line: str) -> list[str]:
        """Run one command and return what it printed."""
        self.out = []
        name, *words = line.split()
        run: Callable[..., None] = getattr(self, f"do_{name}")
        run(*words)
        return self.out

    # Nodes

    def do_cluster(self, size: str, *options: str) -> None:
        self._begin()
        chosen = dict(option.split("=") for option in options)
        self.windows = Windows(
            messages=int(chosen.get("window", 64)), append_bytes=int(chosen.get("append", 1 << 19))
        )
        nodes = range(1, int(size) + 1)
        self.configuration = Configuration(
            CLUSTER, tuple((node - 1, node) for node in nodes), int(size)
        )
        for node in nodes:
            self.do_empty(str(node))
            self.core(str(node)).found(founding_entry(self.configuration), self.now_ns)
            self._after(node)

    def do_empty(self, node: str) -> None:
        self.places[int(node)] = Place(patience_ns=(int(node) - 1) * 110 * MS)
        self.do_start(node)

    def do_log(self, node: str, _term: str, term: str, *terms: str) -> None:
        disk = self.places[int(node)].disk
        disk.hard_state = HardState(int(term.rstrip(":")), None)
        disk.entries = {
            index: Entry(index, int(of), BATCH, 0, b"of %s" % of.encode())
            for index, of in enumerate(terms, 1)
        }
        disk.entries[1] = founding_entry(self.configuration)
        self.do_start(node)

    def do_term(self, node: str, term: str) -> None:
        self.places[int(node)].disk.hard_state = HardState(int(term), None)
        self.do_start(node)

    def do_start(self, node: str) -> None:
        place = self.places[int(node)]

        def patience() -> Iterator[int]:
            while True:
                yield place.patience_ns

        place.core = Raft(
            int(node), place.disk.restored(), patience(), self.now_ns, Timing(), self.windows
        )
        place.held = []
        place.role = place.core.role
        self._after(int(node))

    def do_crash(self, node: str) -> None:
        place = self.places[int(node)]
        place.core = None
        lost = len(place.disk.unsynced)
        place.disk.unsynced.clear()
        self.queue = [message for message in self.queue if message.to != int(node)]
        if lost:
            self.out.append(f"{lost} unsynced saves lost")

    def do_patience(self, node: str, ms: str) -> None:
        self.places[int(node)].patience_ns = int(ms) * MS

    def do_pause(self, node: str) -> None:
        self.places[int(node)].is_paused = True

    def do_resume(self, node: str) -> None:
        self.places[int(node)].is_paused = False

    def core(self, node: str) -> Raft:
        """Return a node that runs."""
        core = self.places[int(node)].core
        assert core is not None, f"node {node} is down"
        return core

    # Disks

    def do_disk(self, node: str, speed: str) -> None:
        self.places[int(node)].is_slow = speed == "slow"
        if speed == "fast":
            self.do_sync(node)

    def do_sync(self, node: str, which: str = "all") -> None:
        place = self.places[int(node)]
        if place.core is None or not place.disk.unsynced:
            return
        number = place.disk.unsynced[0 if which == "first" else -1].number
        place.disk.sync(number)
        place.core.synced(number, self.now_ns)
        for _, message in [held for held in place.held if held[0] <= number]:
            self._send(message)
        place.held = [held for held in place.held if held[0] > number]
        self._after(int(node))

    # What comes of a call

    def _after(self, node: int) -> None:
        place = self.places[node]
        core = place.core
        assert core is not None
        effects = core.take(self.now_ns)
        self._told(node, place, core, effects)
        for message in effects.now:
            self._send(message)
        place.held += [(effects.after, message) for message in effects.after_sync]
        if effects.save is not None:
            place.disk.unsynced.append(effects.save)
        if effects.elected:
            core.propose(b"noop", self.now_ns, NOOP)
            self._after(node)
        elif effects.save is not None and not place.is_slow:
            self.do_sync(str(node))

    def _told(self, node: int, place: Place, core: Raft, effects: Effects) -> None:
        self.checks.after(core, effects)
        if core.role != place.role:
            place.role = core.role
            self.out.append(f"{self.now_ns // MS} ms: {node} is {core.role}, term {core.term}")
        elif any(isinstance(message, VoteRequest) and message.pre for message in effects.now):
            self.out.append(f"{self.now_ns // MS} ms: {node} asks again")

    def _send(self, message: Message) -> None:
        self.checks.sent(message)
        if (message.sender, message.to) not in self.cuts:
            self.queue.append(message)

    # Messages

    def _deliver(self, message: Message) -> bool:
        place = self.places.get(message.to)
        if place is None or place.core is None:
            return False
        place.core.step(message, self.now_ns)
        self._after(message.to)
        return True

    def _is_open(self, message: Message) -> bool:
        place = self.places.get(message.to)
        return place is None or not place.is_paused

    def do_deliver(self, *links: str) -> None:
        if not links:
            while any(self._is_open(message) for message in self.queue):
                self._deliver_all(self.queue)
            return
        for link in links:
            if link != "last":
                waiting = [m for m in self.queue if (m.sender, m.to) == self._ends(link)]
                self._deliver_all(waiting[-1:] if links[-1] == "last" else waiting)

    def _deliver_all(self, messages: list[Message]) -> None:
        for message in [m for m in messages if self._is_open(m)]:
            self.queue.remove(message)
            self.out.append(described(message))
            self._deliver(message)

    def _flow(self) -> None:
        for _ in range(100_000):
            message = next((m for m in self.queue if self._is_open(m)), None)
            if message is None:
                return
            self.queue.remove(message)
            self._deliver(message)
        raise AssertionError("messages never end")

    def do_drop(self, *links: str) -> None:
        ends = [self._ends(link) for link in links]
        self.queue = [m for m in self.queue if (m.sender, m.to) not in ends]

    def do_double(self, link: str) -> None:
        self.queue += [m for m in self.queue if (m.sender, m.to) == self._ends(link)]

    def do_cut(self, what: str) -> None:
        if "->" in what:
            self.cuts.add(self._ends(what))
        else:
            for other in self.places:
                self.cuts |= {(int(what), other), (other, int(what))}
        self.queue = [m for m in self.queue if (m.sender, m.to) not in self.cuts]

    def do_heal(self) -> None:
        self.cuts.clear()

    @staticmethod
    def _ends(link: str) -> tuple[int, int]:
        one, other = link.split("->")
        return int(one), int(other)

    # Time

    def _tick(self, node: int) -> None:
        place = self.places[node]
        if place.core is not None and not place.is_paused:
            place.core.tick(self.now_ns)
            self._after(node)

    def do_tick(self, nodes: str, ms: str) -> None:
        until = self.now_ns + int(ms) * MS
        while self.now_ns < until:
            self.now_ns = min(until, self.now_ns + _PROBING_NS)
            for node in nodes.split(","):
                self._tick(int(node))

    def do_run(self, ms: str) -> None:
        until = self.now_ns + int(ms) * MS
        while self.now_ns < until:
            self.now_ns += 10 * MS
            for node in self.places:
                self._tick(node)
            self._flow()

    def do_settle(self) -> None:
        self.do_run("100")

    def do_gap(self, ms: str) -> None:
        self.now_ns += int(ms) * MS

    def do_elect(self, node: str) -> None:
        core = self.core(node)
        before = core.term
        while core.role != LEADER and core.term == before and not self.queue:
            self.do_tick(node, "50")
        self._flow()
        self.do_settle()

    # Commands of a driver

    def do_propose(self, node: str, text: str) -> None:
        core = self.core(node)
        index = core.propose(text.encode(), self.now_ns)
        self.out.append("refused" if index is None else f"entry {index}/{core.term}")
        self._after(int(node))

    def do_transfer(self, node: str, target: str) -> None:
        chosen = self.core(node).transfer(self.now_ns, int(target))
        self.out.append("refused" if chosen is None else f"to {chosen}")
        self._after(int(node))

    def do_compact(self, node: str, index: str, trailing: str) -> None:
        place = self.places[int(node)]
        place.disk.snapshot = self.core(node).compact(int(index), int(trailing))

    def do_join(self, leader: str, node: str, slot: str) -> None:
        self.core(leader).join(int(node), int(slot), self.now_ns)
        self._after(int(leader))

    def do_unreachable(self, node: str, peer: str) -> None:
        self.core(node).unreachable(int(peer))
        self._after(int(node))

    # What is printed

    def do_show(self, *nodes: str) -> None:
        for node in nodes or map(str, self.places):
            core = self.places[int(node)].core
            if core is None:
                self.out.append(f"{node} down")
                continue
            log = core.log
            base = [f"({log.base_index}/{log.base_term})"] if log.base_index else []
            terms = [
                f"{log.term(index)}{'*' if index > core.stable_index else ''}"
                for index in range(log.base_index + 1, log.last_index + 1)
            ]
            named = core.named_leader(self.now_ns)
            voters = ",".join(map(str, sorted(core.configuration.voters))) or "none"
            usual = voters == ",".join(str(n) for n in sorted(self.configuration.voters))
            self.out.append(
                f"{node} {core.role}, term {core.term}, log {' '.join(base + terms) or 'empty'}, "
                f"commit {core.commit}, applied {core.applied}, names {named or 'nobody'}"
                f"{'' if usual else f', voters {voters}'}"
            )

    def do_stamps(self, node: str) -> None:
        log = self.core(node).log
        stamps = (log.stamp(index) // MS for index in range(1, log.last_index + 1))
        self.out.append(" ".join(str(stamp) for stamp in stamps))

    def do_peers(self, node: str) -> None:
        for peer, progress in self.core(node).peers.items():
            text = f"{peer} {progress.state}, match {progress.match}, next {progress.next}"
            if progress.inflight_messages:
                text += f", {progress.inflight_messages} on their way"
            self.out.append(text + (", paused" if progress.paused else ""))


def rewritten(text: str) -> str:
    """Run a scenario and return it with what its commands print now."""
    scenario = Scenario()
    lines: list[str] = []
    for line in text.splitlines():
        if re.match(r" +\S", line):
            continue
        lines.append(line)
        if line.startswith("> "):
            lines += [f"    {printed}" for printed in scenario.command(line[2:])]
    return "\n".join(lines) + "\n"


def main(arguments: list[str]) -> int:
    """Rewrite the scenarios named, or all."""
    if arguments[:1] != ["--rewrite"]:
        print(__doc__)
        return 2
    for path in [Path(name) for name in arguments[1:]] or sorted(SCENARIOS.glob("*.txt")):
        path.write_text(rewritten(path.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
