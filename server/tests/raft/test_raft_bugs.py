"""Bugs put in on purpose are found: by the random network in a stated number of seeds, or told
apart by a scenario."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from raft_network import Broken
from raft_scenario import SCENARIOS, rewritten
from test_raft_network import play
from ticketing_server.raft.configuration import History, majority_of
from ticketing_server.raft.core import Raft
from ticketing_server.raft.following import Following
from ticketing_server.raft.leading import Leading
from ticketing_server.raft.log import Log
from ticketing_server.raft.messages import (
    Append,
    AppendReply,
    Entry,
    HardState,
    InstallSnapshot,
    VoteRequest,
)
from ticketing_server.raft.progress import Progress
from ticketing_server.raft.saves import Save, Saves
from ticketing_server.raft.state import NodeState
from ticketing_server.raft.timing import MS

Patch = Callable[[pytest.MonkeyPatch], None]


def acks_before_the_sync(patch: pytest.MonkeyPatch) -> None:
    def answer(self: Following, message: Append | InstallSnapshot, index: int) -> None:
        self._now.append(
            AppendReply(self.node_id, message.sender, self.term, True, index, 0, 0, message.round)
        )

    patch.setattr(Following, "_answer", answer)


def counts_old_terms(patch: pytest.MonkeyPatch) -> None:
    def advance(self: Leading) -> None:
        held = self.configuration
        synced = [
            self.stable_index if node == self.node_id else self.peers[node].match
            for node in held.voters
        ]
        self.commit = max(self.commit, majority_of(synced, held.majority))

    patch.setattr(Leading, "_advance_commit", advance)


def reordered_append_truncates(patch: pytest.MonkeyPatch) -> None:
    def first_conflict(self: Log, entries: Sequence[Entry]) -> int | None:
        new = [entry.index for entry in entries if entry.index > self.base_index]
        return new[0] if new else None

    patch.setattr(Log, "first_conflict", first_conflict)


def votes_for_any_log(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Log, "is_as_recent", lambda self, index, term: True)


def vote_is_not_saved(patch: pytest.MonkeyPatch) -> None:
    honest = NodeState._take_save

    def take_save(self: NodeState) -> Save | None:
        save = honest(self)
        if save is not None and save.hard_state is not None:
            return save._replace(hard_state=HardState(save.hard_state.term, None))
        return save

    patch.setattr(NodeState, "_take_save", take_save)


def term_of_entries_is_not_compared(patch: pytest.MonkeyPatch) -> None:
    honest = Following._on_append

    def on_append(self: Following, message: Append) -> None:
        term = self.log.term(message.prev_index)
        if term is not None and message.prev_index >= self.commit:
            message = Append(
                message.sender, message.to, message.term, message.prev_index, term,
                message.entries, message.commit, message.round,
            )  # fmt: skip
        honest(self, message)

    patch.setattr(Following, "_on_append", on_append)


def answers_unheard(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Leading, "is_confirmed", property(lambda self: True))


def nobody_refuses(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Raft, "_refuses_votes", lambda self: False)


def counts_from_when_acks_are_read(patch: pytest.MonkeyPatch) -> None:
    def is_confirmed(self: Leading) -> bool:
        heard = [
            node == self.node_id or self._is_heard(self.peers[node])
            for node in self.configuration.voters
        ]
        return sum(heard) >= self.configuration.majority

    patch.setattr(Leading, "is_confirmed", property(is_confirmed))


def heartbeats_commit_what_is_not_there(patch: pytest.MonkeyPatch) -> None:
    honest = Leading._begin_round

    def begin_round(self: Leading) -> None:
        matches = {node: peer.match for node, peer in self.peers.items()}
        for peer in self.peers.values():
            peer.match = self.commit
        honest(self)
        for node, match in matches.items():
            self.peers[node].match = match

    patch.setattr(Leading, "_begin_round", begin_round)


def snapshots_write_over_what_is_committed(patch: pytest.MonkeyPatch) -> None:
    def on_install(self: Following, message: InstallSnapshot) -> None:
        self._hear(message.sender)
        self._restore(message.snapshot)
        self._answer(message, message.snapshot.index)

    patch.setattr(Following, "_on_install", on_install)


def stalls_on_a_lost_append(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Progress, "refused", lambda self, index, next_index: False)


def votes_leave_before_the_sync(patch: pytest.MonkeyPatch) -> None:
    honest = Raft._on_vote_request

    def on_vote_request(self: Raft, message: VoteRequest) -> None:
        honest(self, message)
        self._now += self._after
        self._after = []

    patch.setattr(Raft, "_on_vote_request", on_vote_request)


def first_sync_speaks_for_all(patch: pytest.MonkeyPatch) -> None:
    honest = Saves.synced

    def synced(self: Saves, number: int) -> None:
        last = [save.last for save in self._pending if save.number <= number]
        honest(self, number)
        self.stable_index = max([self.stable_index, *last])

    patch.setattr(Saves, "synced", synced)


def configuration_outlives_its_entry(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(History, "truncate", lambda self, index: None)


def stamps_run_on_without_a_leader(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Leading, "cluster_time", lambda self, now_ns: now_ns)


def answers_while_handing_over(patch: pytest.MonkeyPatch) -> None:
    def is_confirmed(self: Leading) -> bool:
        age_ns = self.now_ns - self.rounds.confirmed_sent_ns
        return self.is_alone or (self.rounds.confirmed > 0 and age_ns < 350 * MS)

    patch.setattr(Leading, "is_confirmed", property(is_confirmed))


def leads_on_unheard(patch: pytest.MonkeyPatch) -> None:
    def tick_leader(self: Leading) -> None:
        self._begin_round()

    patch.setattr(Leading, "_tick_leader", tick_leader)


def campaigns_without_asking(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Raft, "_pre_campaign", lambda self: self._campaign(is_transfer=False))


def backs_off_one_by_one(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Log, "last_at_most", lambda self, index, term: index - 1)


FOUND_BY_SEEDS: dict[Patch, int] = {
    acks_before_the_sync: 5,
    reordered_append_truncates: 10,
    votes_for_any_log: 5,
    term_of_entries_is_not_compared: 10,
    heartbeats_commit_what_is_not_there: 10,
    stalls_on_a_lost_append: 1,
}
"""How many seeds it takes at most."""

FOUND_BY_SCENARIO: dict[Patch, str] = {
    counts_old_terms: "paper_figure_8",
    vote_is_not_saved: "one_vote",
    votes_leave_before_the_sync: "one_vote",
    answers_unheard: "only_a_heard_leader_answers",
    counts_from_when_acks_are_read: "only_a_heard_leader_answers",
    nobody_refuses: "prevote_checkquorum",
    snapshots_write_over_what_is_committed: "snapshot_by_response",
    first_sync_speaks_for_all: "append_aba",
    configuration_outlives_its_entry: "replaced_node",
    stamps_run_on_without_a_leader: "cluster_time",
    answers_while_handing_over: "transfer",
    leads_on_unheard: "election_leader_lost",
    campaigns_without_asking: "prevote_checkquorum",
    backs_off_one_by_one: "backup",
}
"""What takes more than chance gives in some tens of seeds."""


def seeds_until_found(most: int) -> int | None:
    """Return after how many seeds something was found that must not be; None where nothing."""
    for seed in range(most):
        try:
            play(seed)
        except (Broken, AssertionError, ValueError):
            return seed + 1
    return None


@pytest.mark.parametrize("bug", FOUND_BY_SEEDS, ids=lambda bug: bug.__name__)
def test_seeds_find(bug: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    bug(monkeypatch)
    assert seeds_until_found(FOUND_BY_SEEDS[bug]) is not None


@pytest.mark.parametrize("bug", FOUND_BY_SCENARIO, ids=lambda bug: bug.__name__)
def test_scenario_finds(bug: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = (SCENARIOS / f"{FOUND_BY_SCENARIO[bug]}.txt").read_text(encoding="utf-8")
    bug(monkeypatch)
    try:
        found = rewritten(expected)
    except (Broken, AssertionError, ValueError):
        return
    assert found != expected
