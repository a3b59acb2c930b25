"""Commits: created, accepted, refused, in batches, and always wholly or not at all."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.model import Commit, HeadChange, Mail, Refusal, Reply
from holdfast.store.base import Store
from holdfast.testing.build import ALICE, BOB, CAROL, commit, create, entry, head, owner
from holdfast.testing.contract.base import LEASE, ContractBase


class CommitContract(ContractBase):
    """What `commit` and `try_commit` promise."""

    async def test_a_new_run_is_there_with_its_first_entry(self, store: Store) -> None:
        assert await store.commit([create("run")]) == [Reply()]
        first = entry(1, kind="created", at=1000.0)
        assert await store.read_entries("run") == [first]
        assert await self.head(store) == head("run", seq=1, cursor=first.cursor, updated_at=1000.0)

    async def test_a_new_run_may_begin_with_several_entries(self, store: Store) -> None:
        await self.write(store, commit("run", 1, 2, 3, create=head("run")))
        assert await self.seqs(store) == [1, 2, 3]
        assert (await self.head(store)).seq == 3

    async def test_a_new_run_may_be_given_up_by_the_commit_that_makes_it(self, store: Store) -> None:
        await self.write(store, create("run", owner=None, fence=0, status="pending"))
        found = await self.head(store)
        assert (found.owner, found.owned, found.fence) == (None, False, 0)

    @pytest.mark.parametrize("new", [{"owner": BOB}, {"owner": None}, {"fence": 2}])
    async def test_a_new_run_of_another_owner_or_fence_is_refused(self, store: Store, new: dict[str, object]) -> None:
        (reply,) = await store.commit([commit("run", 1, create=head("run", **new))])
        assert reply.refused is Refusal.STALE
        assert await store.read_heads(["run"]) == [None]

    async def test_an_id_that_is_taken_is_refused_and_nothing_changes(self, store: Store) -> None:
        await self.write(store, create("run"), commit("run", 2))
        before = await self.all_of(store)
        (reply,) = await store.commit([create("run", owner=BOB, fence=9, flow="other")])
        assert reply.refused is Refusal.EXISTS
        assert await self.all_of(store) == before

    async def test_the_second_of_two_creations_in_one_batch_is_refused(self, store: Store) -> None:
        replies = await store.commit([create("run", flow="first"), create("run", flow="second")])
        assert [reply.refused for reply in replies] == [None, Refusal.EXISTS]
        assert (await self.head(store)).flow == "first"

    async def test_ids_that_differ_in_case_only_are_different_runs(self, store: Store) -> None:
        await self.write(store, create("run1", flow="lower"), create("Run1", flow="upper"), create("RUN1", flow="all"))
        found = await store.read_heads(["run1", "Run1", "RUN1", "rUN1"])
        assert [one and one.flow for one in found] == ["lower", "upper", "all", None]

    async def test_the_log_of_a_new_run_begins_at_one(self, store: Store) -> None:
        replies = await store.commit([commit("run", 2, create=head("run")), commit("run", create=head("run"))])
        assert [reply.refused for reply in replies] == [Refusal.GAP, Refusal.GAP]
        assert await store.read_heads(["run"]) == [None]
        assert await store.read_entries("run") == []

    @pytest.mark.parametrize("by", [{"fence": 0}, {"fence": 2}, {"owner": BOB}, {"owner": BOB, "fence": 0}])
    async def test_another_fence_or_owner_is_refused(self, store: Store, by: dict[str, object]) -> None:
        await self.write(store, create("run"))
        (reply,) = await store.commit([commit("run", 2, **by)])
        assert reply.refused is Refusal.STALE
        assert await self.seqs(store) == [1]

    async def test_a_run_that_was_never_there_is_stale(self, store: Store) -> None:
        (reply,) = await store.commit([commit("run", 1)])
        assert reply.refused is Refusal.STALE
        assert await store.read_heads(["run"]) == [None]

    async def test_a_deleted_run_is_stale(self, store: Store) -> None:
        await self.write(store, create("run"))
        assert await store.delete_run("run")
        (reply,) = await store.commit([commit("run", 2)])
        assert reply.refused is Refusal.STALE

    async def test_the_owner_of_a_deleted_run_cannot_write_to_a_new_one_of_the_same_id(self, store: Store) -> None:
        await self.write(store, create("run", owner=ALICE))
        assert await store.delete_run("run")
        await self.write(store, create("run", owner=BOB))
        (reply,) = await store.commit([commit("run", 2, owner=ALICE)])
        assert reply.refused is Refusal.STALE
        assert await self.seqs(store) == [1]

    async def test_who_gave_a_run_up_cannot_write_to_it(self, store: Store) -> None:
        await self.write(store, create("run"), commit("run", 2, change=HeadChange(owner=None)))
        (reply,) = await store.commit([commit("run", 3)])
        assert reply.refused is Refusal.STALE
        assert (await self.head(store)).owner is None

    @pytest.mark.parametrize("seq", [-1, 0, 1, 2, 4, 99])
    async def test_an_entry_that_does_not_follow_the_last_one_is_refused(self, store: Store, seq: int) -> None:
        await self.write(store, create("run"), commit("run", 2))
        before = await self.all_of(store)
        for bad in (commit("run", seq), commit("run", seq, change=HeadChange(status="completed", owner=None))):
            (reply,) = await store.commit([bad])
            assert reply.refused is Refusal.GAP
            assert await self.all_of(store) == before

    @pytest.mark.parametrize(
        ("refused", "bad"),
        [
            (Refusal.STALE, {"fence": 2, "entries": (entry(4),)}),
            (Refusal.STALE, {"owner": BOB, "entries": (entry(4),)}),
            (Refusal.GAP, {"entries": (entry(5),)}),
            (Refusal.GAP, {"entries": (entry(4), entry(6))}),
            (Refusal.GAP, {"entries": (entry(4), entry(4))}),
            (Refusal.GAP, {"rebase": entry(9)}),
            (Refusal.GAP, {"entries": (entry(4),), "rebase": entry(5)}),
            (Refusal.EXISTS, {"create": head("run"), "entries": (entry(1),)}),
        ],
    )
    async def test_a_refused_commit_changes_nothing_at_all(
        self, store: Store, refused: Refusal, bad: dict[str, object]
    ) -> None:
        await self.write(store, create("run"), commit("run", 2, 3))
        await store.post_mail("run", Mail("send"))
        before = await self.all_of(store)
        taken = tuple(mail.id for mail in before[2])
        change = HeadChange(status="failed", owner=None, base=2, floor=2, wake_at=5.0)
        fields = {"change": change, "take": taken, "rebase": entry(2, body=b'"x"'), **bad}
        (reply,) = await store.commit([commit("run", **fields)])
        assert reply.refused is refused
        assert await self.all_of(store) == before

    async def test_each_commit_of_a_batch_has_its_own_outcome(self, store: Store) -> None:
        await self.write(store, create("a"), create("b"), create("c"))
        batch = [
            commit("a", 2),
            commit("b", 2, fence=7),
            commit("missing", 1),
            commit("c", 5),
            create("a"),
            create("d"),
            commit("b", 2),
        ]
        expected = [None, Refusal.STALE, Refusal.STALE, Refusal.GAP, Refusal.EXISTS, None, None]
        assert [reply.refused for reply in await store.commit(batch)] == expected
        assert [await self.seqs(store, run) for run in "abcd"] == [[1, 2], [1, 2], [1], [1]]

    @pytest.mark.parametrize(
        ("refused", "bad"),
        [
            (Refusal.STALE, commit("bad", 2, 3, fence=7)),
            (Refusal.STALE, commit("bad", 2, 3, owner=BOB, change=HeadChange(status="failed"))),
            (Refusal.STALE, commit("missing", 1)),
            (Refusal.GAP, commit("bad", 0)),
            (Refusal.GAP, commit("bad", 1)),
            (Refusal.GAP, commit("bad", 3)),
            (Refusal.GAP, commit("bad", 2, 4)),
            (Refusal.GAP, commit("bad", 2, 2)),
            (Refusal.GAP, commit("missing", 2, create=head("missing"))),
            (Refusal.GAP, commit("missing", 1, 3, create=head("missing"))),
            (Refusal.EXISTS, create("bad")),
        ],
    )
    async def test_one_bad_commit_among_many_is_refused_alone(
        self, store: Store, refused: Refusal, bad: Commit
    ) -> None:
        runs = [f"run-{number}" for number in range(40)]
        await self.write(store, create("bad"), *map(create, runs))
        before = await self.all_of(store, "bad")
        batch = [commit(run, 2, 3) for run in runs]
        batch.insert(20, bad)
        assert [reply.refused for reply in await store.commit(batch)] == [None] * 20 + [refused] + [None] * 20
        assert [await self.seqs(store, run) for run in runs] == [[1, 2, 3]] * 40
        assert await self.all_of(store, "bad") == before
        assert await store.read_heads(["missing"]) == [None]

    async def test_a_batch_that_is_there_already_is_refused_whatever_was_written_since(self, store: Store) -> None:
        steps = [commit(run, 2) for run in ("a", "b")]
        await self.write(store, create("a"), create("b"))
        await self.write(store, *steps)
        await store.post_mail("a", Mail("send"))
        assert [reply.refused for reply in await store.commit(steps)] == [Refusal.GAP, Refusal.GAP]
        assert [await self.seqs(store, run) for run in "ab"] == [[1, 2], [1, 2]]

    async def test_one_batch_may_hold_the_commits_of_several_owners(self, store: Store) -> None:
        each = {"hers": ALICE, "his": BOB}
        first = [create(run, owner=owner) for run, owner in each.items()]
        steps = [commit(run, 2, owner=owner) for run, owner in each.items()]
        ends = [commit(run, 3, owner=owner, change=HeadChange(status="failed")) for run, owner in each.items()]
        for batch in (first, steps, ends):
            assert [reply.refused for reply in await store.commit(batch)] == [None, None]
        assert [await self.seqs(store, run) for run in each] == [[1, 2, 3], [1, 2, 3]]
        assert [(await self.head(store, run)).status for run in each] == ["failed", "failed"]

    async def test_several_commits_of_one_run_in_a_batch_are_applied_in_order(self, store: Store) -> None:
        batch = [create("run"), commit("run", 2, 3), commit("run", 9), commit("run", 4), commit("run", 5)]
        replies = await store.commit(batch)
        assert [reply.refused for reply in replies] == [None, None, Refusal.GAP, None, None]
        assert await self.seqs(store) == [1, 2, 3, 4, 5]

    async def test_a_commit_that_gives_a_run_up_shuts_out_the_later_ones_of_its_batch(self, store: Store) -> None:
        await self.write(store, create("run"))
        batch = [commit("run", 2, change=HeadChange(owner=None)), commit("run", 3)]
        assert [reply.refused for reply in await store.commit(batch)] == [None, Refusal.STALE]
        assert await self.seqs(store) == [1, 2]

    async def test_an_empty_batch_has_no_replies(self, store: Store) -> None:
        assert await store.commit([]) == []

    async def test_an_empty_commit_gives_the_mail_and_writes_nothing(self, store: Store) -> None:
        await self.write(store, create("run"))
        before = await self.head(store)
        await store.post_mail("run", Mail("send", b'"hello"'))
        (reply,) = await self.write(store, commit("run"))
        assert [(mail.kind, mail.body) for mail in reply.mail] == [("send", b'"hello"')]
        assert await self.head(store) == before
        assert await self.seqs(store) == [1]

    async def test_an_empty_commit_tells_whether_the_fence_still_holds(self, store: Store) -> None:
        await self.write(store, create("run"))
        assert await self.claim(store, BOB)
        replies = await store.commit([commit("run"), commit("run", owner=BOB, fence=2), commit("missing")])
        assert [reply.refused for reply in replies] == [Refusal.STALE, None, Refusal.STALE]

    async def test_a_commit_replaces_the_fields_it_gives_and_no_others(self, store: Store) -> None:
        full = head("run", wake_at=1.5, error=b'"e"', waiting_for="w", info=b'{"a":1}', expires_at=9.0, attempt=3)
        await self.write(store, commit("run", 1, create=full))
        before = await self.head(store)
        changes: list[dict[str, Any]] = [
            {"status": "waiting"},
            {"wake_at": None, "expires_at": 10.25},
            {"error": None, "info": b'{"b":2}', "waiting_for": "an answer"},
            {"attempt": 1, "base": 1, "floor": 1},
            {"started_at": 1001.5, "ended_at": 0.0},
            {"started_at": None, "ended_at": None, "waiting_for": None, "expires_at": None},
        ]
        for fields in changes:
            await self.write(store, commit("run", change=HeadChange(**fields)))
            before = replace(before, **fields)
            assert await self.head(store) == before

    async def test_a_run_can_be_handed_to_another_owner(self, store: Store) -> None:
        await self.write(store, create("run"), commit("run", 2, change=HeadChange(owner=BOB)))
        replies = await store.commit([commit("run", 3), commit("run", 3, owner=BOB)])
        assert [reply.refused for reply in replies] == [Refusal.STALE, None]

    async def test_the_head_shows_the_last_entry(self, store: Store) -> None:
        await self.write(store, create("run"))
        last = entry(3, cursor=b'{"next":"last"}', at=1234.5678901)
        await self.write(store, commit("run", entries=(entry(2), last)))
        found = await self.head(store)
        assert (found.seq, found.cursor, found.updated_at) == (3, b'{"next":"last"}', 1234.5678901)
        await self.write(store, commit("run", change=HeadChange(status="paused")))
        assert await self.head(store) == replace(found, status="paused")

    async def test_an_inline_store_commits_on_the_spot_and_others_say_none(self, store: Store) -> None:
        batch = [create("run"), commit("run", 2), commit("run", 9)]
        replies = store.try_commit(batch)
        if "inline" in store.capabilities:
            assert replies is not None
            assert [reply.refused for reply in replies] == [None, None, Refusal.GAP]
            assert await self.seqs(store) == [1, 2]
        else:
            assert replies is None
            assert await store.read_heads(["run"]) == [None]

    async def test_a_first_run_brings_its_owner_with_it_and_a_refused_one_does_not(self, store: Store) -> None:
        replies = store.try_commit([create("run", owner=CAROL)], (owner(CAROL), LEASE))
        if replies is None:
            assert await store.read_heads(["run"]) == [None]
            assert await store.list_owners() == []
            return
        assert [reply.refused for reply in replies] == [None]
        assert (await self.head(store)).owned
        replies = store.try_commit([create("run", owner=BOB)], (owner(BOB), LEASE))
        assert replies is not None
        assert [reply.refused for reply in replies] == [Refusal.EXISTS]
        assert [known.id for known in await store.list_owners()] == [CAROL]
        await store.retire_owner(CAROL)
        replies = store.try_commit([commit("run", 2, owner=CAROL)], (owner(CAROL), LEASE))
        assert replies is not None
        assert (await self.head(store)).owned

    async def test_many_runs_commit_at_once(self, store: Store) -> None:
        async def live(run: str) -> None:
            await self.write(store, create(run))
            for seq in range(2, 7):
                await self.write(store, commit(run, seq))

        runs = [f"run-{n}" for n in range(20)]
        await asyncio.gather(*(live(run) for run in runs))
        for run in runs:
            assert await self.seqs(store, run) == [1, 2, 3, 4, 5, 6]

    async def test_of_many_commits_of_the_same_seq_exactly_one_is_accepted(self, store: Store) -> None:
        await self.write(store, create("run"))
        tries: list[Commit] = [commit("run", entries=(entry(2, body=b"%d" % n),)) for n in range(10)]
        replies = await asyncio.gather(*(store.commit([one]) for one in tries))
        outcomes = [reply.refused for (reply,) in replies]
        assert set(outcomes) == {None, Refusal.GAP}
        assert outcomes.count(None) == 1
        (_, second) = await store.read_entries("run")
        assert second.body == b"%d" % outcomes.index(None)

    async def test_of_many_creations_of_one_id_exactly_one_is_accepted(self, store: Store) -> None:
        tries = [create("run", flow=f"flow-{n}") for n in range(10)]
        replies = await asyncio.gather(*(store.commit([one]) for one in tries))
        outcomes = [reply.refused for (reply,) in replies]
        assert set(outcomes) == {None, Refusal.EXISTS}
        assert outcomes.count(None) == 1
        assert (await self.head(store)).flow == f"flow-{outcomes.index(None)}"
