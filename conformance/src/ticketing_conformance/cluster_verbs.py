"""The verbs `cluster …`: nodes of a real cluster, what is done to them, and what they say."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

from ticketing_conformance.cluster.disk import NoDisk
from ticketing_conformance.cluster.network import NoNetwork
from ticketing_conformance.cluster.nodes import Cluster, Plan, View
from ticketing_conformance.context import SECRET, Arguments, Context, StepFailed
from ticketing_conformance.real_server import ServerBroken, total
from ticketing_conformance.server_pool import ServerPool

HAS_SECONDS = 20.0
POLL_SECONDS = 0.02
_OF_ONE = re.compile(r"slot(\d)_(\w+)")
_COUNTS = {
    "tickets": ("ticketing_tickets", ""),
    "connections": ("ticketing_connections", ""),
    "waiters": ("ticketing_waiters", ""),
    "attached": ("ticketing_waiters", 'state="attached"'),
    "detached": ("ticketing_waiters", 'state="detached"'),
    "held_back": ("ticketing_waiters", 'state="held_back"'),
}


class ClusterVerbs:
    """The clusters of one run."""

    def __init__(self, context: Context, pool: ServerPool) -> None:
        self._context = context
        self._pool = pool
        self.clusters: dict[str, Cluster] = {}

    def do(self, arguments: Arguments) -> dict[str, Any]:
        """Carry out one step; returns the fields of its answer."""
        word = arguments.word(0, "what to do")
        method = getattr(self, f"_do_{word}", None)
        if method is None:
            raise StepFailed(f"cluster has no verb {word}")
        try:
            result: dict[str, Any] = method(arguments) or {}
        except (ServerBroken, NoNetwork, NoDisk) as error:
            raise StepFailed(str(error)) from None
        arguments.finish()
        return result

    def log_lines(self) -> list[str]:
        """What all nodes logged last, for the report."""
        return [
            f"{name}/{slot} {line}"
            for name, cluster in self.clusters.items()
            for slot in cluster.slots
            for line in cluster.server(slot).log().splitlines()
        ]

    def cluster(self, arguments: Arguments) -> Cluster:
        """The cluster that a step is about."""
        name = arguments.word(1, "the name of a cluster")
        if name not in self.clusters:
            raise StepFailed(f"there is no cluster {name}")
        return self.clusters[name]

    def _nodes(self, arguments: Arguments) -> list[int]:
        """The nodes that a step names: slots, `leader`, `follower` (one that is none), `all`."""
        cluster = self.cluster(arguments)
        words = arguments.words[2:]
        if words == ["all"]:
            return list(cluster.slots)
        if words in (["leader"], ["follower"]):
            leader = cluster.leader(self._seconds(arguments))
            others = (slot for slot in cluster.slots if slot != leader)
            return [leader if words == ["leader"] else next(others)]
        if not words or not all(word.isdecimal() for word in words):
            raise StepFailed("nodes are slots, or leader, follower, all")
        return [int(word) for word in words]

    def _seconds(self, arguments: Arguments) -> float:
        within = arguments.integer("within_ms", int(HAS_SECONDS * 1000)) / 1000
        return self._context.seconds_left(within)

    # Starting.

    def _do_start(self, arguments: Arguments) -> dict[str, Any]:
        """Start nodes and wait for a leader: `cluster start as=k slots=5 network=1 max_lease=1m`.

        `slot1_NAME=VALUE` is a flag of one node; `disk0_mib=16` gives one a small disk.
        """
        name = arguments.text("as", "k")
        slots = arguments.integer("slots", 3)
        listen_v3 = arguments.integer("listen_v3", 0)
        network = arguments.integer("network", 0)
        seconds = self._seconds(arguments)
        disks = {
            slot: arguments.integer(f"disk{slot}_mib", 0)
            for slot in range(slots)
            if arguments.has(f"disk{slot}_mib")
        }
        flags: list[str] = []
        flags_of: dict[int, tuple[str, ...]] = {}
        for key, value in sorted(arguments.rest().items()):
            text = _text(value)
            own = _OF_ONE.fullmatch(key)
            flag = _flag(own[2] if own else key, text)
            if own:
                flags_of[int(own[1])] = (*flags_of.get(int(own[1]), ()), flag)
            else:
                flags.append(flag)
        plan = Plan(
            slots=slots,
            flags=tuple(flags),
            flags_of=flags_of,
            environment={"TICKETING_SECRET": SECRET.decode("ascii")},
            listen_v3=listen_v3 == 1,
            network=network == 1,
            disks=disks,
            program=tuple(self._pool.program or ()),
        )
        cluster = Cluster(plan)
        self._context.closers.append(cluster.close)
        self.clusters[name] = cluster
        cluster.wait_whole(seconds)
        values: dict[str, Any] = {"url": cluster.url}
        for slot in cluster.slots:
            values |= {f"c{slot}": cluster.clients[slot], f"v3_{slot}": cluster.v3[slot]}
        self._context.variables[name] = values
        self._context.variables["url"] = cluster.url
        return values

    # What is done to nodes.

    def _do_kill(self, arguments: Arguments) -> dict[str, Any]:
        """`cluster kill k leader`: as a crash. The answer has the slot."""
        return self._each(arguments, self.cluster(arguments).kill)

    def _do_freeze(self, arguments: Arguments) -> dict[str, Any]:
        """SIGSTOP."""
        return self._each(arguments, self.cluster(arguments).freeze)

    def _do_thaw(self, arguments: Arguments) -> dict[str, Any]:
        """SIGCONT."""
        return self._each(arguments, self.cluster(arguments).thaw)

    def _do_again(self, arguments: Arguments) -> dict[str, Any]:
        """Start nodes that ended, on their files."""
        return self._each(arguments, self.cluster(arguments).again)

    def _do_wipe(self, arguments: Arguments) -> dict[str, Any]:
        """Remove the files of nodes that ended."""
        return self._each(arguments, self.cluster(arguments).wipe)

    def _do_stop(self, arguments: Arguments) -> dict[str, Any]:
        """SIGTERM, and wait for the end."""
        cluster, codes = self.cluster(arguments), []
        answer = self._each(arguments, lambda slot: codes.append(cluster.stop(slot)))
        return {**answer, "code": codes[0]}

    def _each(self, arguments: Arguments, what: Callable[[int], object]) -> dict[str, Any]:
        nodes = self._nodes(arguments)
        for slot in nodes:
            what(slot)
        return {"slot": nodes[0]}

    def _do_change(self, arguments: Arguments) -> dict[str, Any]:
        """`cluster change k 0 max_lease=2m`: other flags of its own, from its next start on."""
        cluster, nodes = self.cluster(arguments), self._nodes(arguments)
        own = tuple(_flag(key, _text(value)) for key, value in sorted(arguments.rest().items()))
        for slot in nodes:
            cluster.change(slot, own)
        return {"slot": nodes[0]}

    def _do_roll(self, arguments: Arguments) -> None:
        """Stop and start every node, one after the other, each once the last is back."""
        cluster = self.cluster(arguments)
        for slot in cluster.slots:
            code = cluster.stop(slot)
            if code:
                raise StepFailed(f"slot {slot} ended with {code}: {cluster.server(slot).log()}")
            cluster.again(slot)
            cluster.wait_whole(self._context.seconds_left())

    def _do_cut(self, arguments: Arguments) -> dict[str, Any]:
        """`cluster cut k 0 from=1,2`: nothing passes between them (`one_way=1`: from the first)."""
        cluster = self.cluster(arguments)
        one_way = arguments.integer("one_way", 0)
        nodes = self._nodes(arguments)
        others = arguments.integers("from") or [s for s in cluster.slots if s not in nodes]
        if cluster.network is None:
            raise StepFailed("the cluster has no network of its own")
        for slot in nodes:
            if one_way:
                cluster.network.cut_one_way(slot, others)
            else:
                cluster.network.cut(slot, others)
        return {"slot": nodes[0]}

    def _do_cut_clients(self, arguments: Arguments) -> dict[str, Any]:
        """`cluster cut_clients k 0`: nothing passes between its port for clients and them."""
        cluster, nodes = self.cluster(arguments), self._nodes(arguments)
        if cluster.network is None:
            raise StepFailed("the cluster has no network of its own")
        for slot in nodes:
            cluster.network.cut_clients(slot, int(cluster.clients[slot].rpartition(":")[2]))
        return {"slot": nodes[0]}

    def _do_heal(self, arguments: Arguments) -> None:
        """Let everything pass everywhere again."""
        cluster = self.cluster(arguments)
        if cluster.network is None:
            raise StepFailed("the cluster has no network of its own")
        for slot in cluster.slots:
            cluster.network.heal(slot)

    def _do_fill(self, arguments: Arguments) -> dict[str, Any]:
        """`cluster fill k leader`: take all the room on a small disk."""
        return self._each(arguments, lambda slot: self._disk(arguments, slot).fill())

    def _do_free(self, arguments: Arguments) -> dict[str, Any]:
        """Give it back."""
        return self._each(arguments, lambda slot: self._disk(arguments, slot).free())

    def _disk(self, arguments: Arguments, slot: int) -> Any:
        disks = self.cluster(arguments).disks
        if slot not in disks:
            raise StepFailed(f"slot {slot} has no small disk")
        return disks[slot]

    # What nodes say.

    def _do_leader(self, arguments: Arguments) -> dict[str, Any]:
        """`cluster leader k as=l`, then `{l.slot} {l.address}`; `not=0`: another than that."""
        cluster = self.cluster(arguments)
        name = arguments.text("as", "leader")
        other = arguments.optional_integer("not")
        deadline = time.monotonic() + self._seconds(arguments)
        while True:
            slot = cluster.leader(max(0.1, deadline - time.monotonic()))
            if slot != other:
                break
            if time.monotonic() > deadline:
                raise StepFailed(f"slot {slot} still leads{cluster.tail()}")
            time.sleep(POLL_SECONDS)
        follower = next(one for one in cluster.slots if one != slot)
        values = {
            "slot": slot,
            "address": cluster.clients[slot],
            "follower_slot": follower,
            "follower": cluster.clients[follower],
            "v3": cluster.v3[slot],
            "follower_v3": cluster.v3[follower],
        }
        self._context.variables[name] = values
        return values

    def _do_whole(self, arguments: Arguments) -> None:
        """Wait until all nodes are voters that have caught up."""
        self.cluster(arguments).wait_whole(self._seconds(arguments))

    def _do_voters(self, arguments: Arguments) -> None:
        """Wait until the leader counts so many: `cluster voters k count=2`."""
        cluster, wanted = self.cluster(arguments), arguments.integer("count", 3)

        def counted(views: Any) -> int | None:
            leading = [v for v in views.values() if isinstance(v, View) and v.is_leader]
            return wanted if any(v.voters == wanted for v in leading) else None

        cluster.wait(counted, self._seconds(arguments), f"there are not {wanted} voters")

    def _do_has(self, arguments: Arguments) -> None:
        """Wait until the leader counts so: `cluster has k attached=100 held_back=0`."""
        cluster = self.cluster(arguments)
        seconds = self._seconds(arguments)
        wanted = {name: int(value) for name, value in arguments.rest().items()}
        if unknown := set(wanted) - set(_COUNTS):
            raise StepFailed(f"a cluster has no count {', '.join(sorted(unknown))}")
        deadline = time.monotonic() + seconds
        while True:
            found = self._counts(cluster, wanted, deadline)
            if found == wanted:
                return
            if time.monotonic() > deadline:
                raise StepFailed(f"the leader has {found} after {seconds:g} s, expected {wanted}")
            time.sleep(POLL_SECONDS)

    def _counts(self, cluster: Cluster, names: Any, deadline: float) -> dict[str, int]:
        leader = cluster.leader(max(0.1, deadline - time.monotonic()))
        try:
            metrics = cluster.server(leader).metrics()
        except OSError:
            return {}
        return {name: total(metrics, *_COUNTS[name]) for name in names}

    def _do_empty(self, arguments: Arguments) -> None:
        """Wait until there is neither ticket nor waiter."""
        cluster, seconds = self.cluster(arguments), self._seconds(arguments)
        deadline = time.monotonic() + seconds
        while True:
            found = self._counts(cluster, ("tickets", "waiters"), deadline)
            if found == {"tickets": 0, "waiters": 0}:
                return
            if time.monotonic() > deadline:
                raise StepFailed(f"there still are {found} after {seconds:g} s")
            time.sleep(POLL_SECONDS)

    def _do_same(self, arguments: Arguments) -> dict[str, Any]:
        """Wait until all nodes have applied the same entries, and compare what came of them."""
        cluster, seconds = self.cluster(arguments), self._seconds(arguments)
        deadline = time.monotonic() + seconds
        while True:
            states = {slot: cluster.state(slot) for slot in cluster.slots}
            if len({index for index, _ in states.values()}) == 1:
                break
            if time.monotonic() > deadline:
                raise StepFailed(f"the nodes have applied {states} after {seconds:g} s")
            time.sleep(POLL_SECONDS)
        if len(set(states.values())) > 1:
            raise StepFailed(f"index and checksum of the nodes are {states}")
        return {"index": states[0][0]}

    def _do_logged(self, arguments: Arguments) -> None:
        """Wait until a node's log has a text: `cluster logged k 0 text="…"`."""
        cluster, text = self.cluster(arguments), arguments.text("text")
        seconds, nodes = self._seconds(arguments), self._nodes(arguments)
        deadline = time.monotonic() + seconds
        while not all(text in cluster.server(slot).log() for slot in nodes):
            if time.monotonic() > deadline:
                raise StepFailed(f"the log does not say {text!r}{cluster.tail()}")
            time.sleep(POLL_SECONDS)


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _flag(name: str, text: str) -> str:
    return f"--{name.replace('_', '-')}={text}"
