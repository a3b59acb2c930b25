"""Claims, fences and owners: who may write, and since when."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from holdfast.model import Claim, Commit, HeadChange, Mail, Query, Refusal
from holdfast.store.base import Store
from holdfast.testing.build import ALICE, BOB, CAROL, commit, create, entry, owner
from holdfast.testing.clock import ManualClock
from holdfast.testing.contract.base import LEASE, ContractBase


def unowned(run: str, **fields: object) -> Commit:
    """A run that waits for somebody to take it."""
    return create(run, **({"owner": None, "fence": 0, "status": "pending"} | fields))


class ClaimContract(ContractBase):
    """What `claim_runs`, `beat`, `retire_owner` and `list_owners` promise."""

    async def test_a_claim_raises_fence_and_attempt_and_changes_nothing_else(self, store: Store) -> None:
        await self.write(store, unowned("run", fence=4, attempt=2, wake_at=3.0, metadata=b'{"a":1}'))
        before = await self.head(store)
        self.beat(store, BOB)
        claim = await self.claim(store, BOB)
        after = replace(before, owner=BOB, owned=True, fence=5, attempt=3)
        assert claim == Claim(after, tuple(await store.read_entries("run")), ())
        assert await self.head(store) == after

    async def test_what_is_not_there_cannot_be_claimed(self, store: Store) -> None:
        assert await self.claim(store, BOB) is None
        assert await store.claim_runs(Query(), BOB) == []

    async def test_a_run_of_a_live_owner_is_left_alone(self, store: Store) -> None:
        self.beat(store, ALICE)
        await self.write(store, create("run"))
        before = await self.head(store)
        assert before.owned
        assert await self.claim(store, BOB) is None
        assert await self.head(store) == before
        await self.write(store, commit("run", 2))

    async def test_an_owner_that_never_said_it_lives_is_dead(self, store: Store) -> None:
        await self.write(store, create("run", owner=ALICE))
        assert not (await self.head(store)).owned
        assert await self.claim(store, BOB) is not None

    async def test_an_owner_is_dead_when_its_lease_has_run_out(self, store: Store, clock: ManualClock) -> None:
        self.beat(store, ALICE)
        await self.write(store, create("run"))
        await self.pass_time(clock, LEASE - 1)
        assert await self.claim(store, BOB) is None
        await self.pass_time(clock, 2)
        assert not (await self.head(store)).owned
        claim = await self.claim(store, BOB)
        assert claim is not None
        assert (claim.head.owner, claim.head.fence) == (BOB, 2)

    async def test_beating_again_prolongs_the_lease_and_keeps_the_fence(self, store: Store, clock: ManualClock) -> None:
        self.beat(store, ALICE)
        await self.write(store, create("run"))
        for _ in range(4):
            await self.pass_time(clock, LEASE - 5)
            self.beat(store, ALICE)
        assert await self.claim(store, BOB) is None
        found = await self.head(store)
        assert (found.owned, found.fence, found.attempt) == (True, 1, 1)
        await self.write(store, commit("run", 2))

    async def test_an_expired_owner_that_beats_again_lives_and_keeps_what_nobody_took(
        self, store: Store, clock: ManualClock
    ) -> None:
        self.beat(store, ALICE)
        await self.write(store, create("kept"), create("lost"))
        await self.pass_time(clock, LEASE + 1)
        assert await self.claim(store, BOB, "lost") is not None
        self.beat(store, ALICE)
        replies = await store.commit([commit("kept", 2), commit("lost", 2)])
        assert [reply.refused for reply in replies] == [None, Refusal.STALE]
        assert await self.claim(store, BOB, "kept") is None

    async def test_a_run_can_be_claimed_again_by_its_own_owner(self, store: Store) -> None:
        self.beat(store, ALICE)
        await self.write(store, create("run"))
        claim = await self.claim(store, ALICE)
        assert claim is not None
        assert (claim.head.owner, claim.head.fence, claim.head.attempt) == (ALICE, 2, 2)
        replies = await store.commit([commit("run", 2, fence=1), commit("run", 2, fence=2)])
        assert [reply.refused for reply in replies] == [Refusal.STALE, None]

    async def test_after_a_claim_only_the_new_owner_writes(self, store: Store) -> None:
        await self.write(store, create("run"))
        assert await self.claim(store, BOB) is not None
        tries = [
            commit("run", 2),
            commit("run", 2, fence=2),
            commit("run", 2, owner=BOB, fence=1),
            commit("run", 2, owner=BOB, fence=2),
        ]
        replies = await store.commit(tries)
        assert [reply.refused for reply in replies] == [Refusal.STALE, Refusal.STALE, Refusal.STALE, None]

    async def test_a_fence_never_falls(self, store: Store) -> None:
        await self.write(store, unowned("run"))
        fences = []
        for number, name in enumerate((ALICE, BOB, ALICE, CAROL, BOB), start=1):
            claim = await self.claim(store, name)
            assert claim is not None
            fences.append(claim.head.fence)
            change = HeadChange(owner=None, attempt=1)
            await self.write(store, commit("run", number + 1, owner=name, fence=claim.head.fence, change=change))
        assert fences == [1, 2, 3, 4, 5]

    async def test_a_retired_owner_is_dead_at_once(self, store: Store) -> None:
        self.beat(store, ALICE)
        await self.write(store, create("run"))
        await store.retire_owner(ALICE)
        assert not (await self.head(store)).owned
        claim = await self.claim(store, BOB)
        assert claim is not None
        assert claim.head.fence == 2

    async def test_retiring_an_unknown_owner_is_harmless(self, store: Store) -> None:
        self.beat(store, ALICE)
        await self.write(store, create("run"))
        await store.retire_owner(BOB)
        await store.retire_owner(BOB)
        assert (await self.head(store)).owned

    async def test_at_most_limit_runs_are_claimed_and_the_next_claim_gets_others(self, store: Store) -> None:
        await self.write(store, *(unowned(f"run-{n}", created_at=1000.0 + n) for n in range(5)))
        self.beat(store, ALICE)
        self.beat(store, BOB)
        first = await store.claim_runs(Query(limit=2), ALICE)
        second = await store.claim_runs(Query(limit=10), BOB)
        assert (len(first), len(second)) == (2, 3)
        assert {claim.head.id for claim in first + second} == {f"run-{n}" for n in range(5)}
        assert await store.claim_runs(Query(limit=0), ALICE) == []

    async def test_runs_that_cannot_be_claimed_do_not_count_against_the_limit(self, store: Store) -> None:
        self.beat(store, ALICE)
        await self.write(store, *(create(f"owned-{n}", created_at=2000.0 + n) for n in range(3)))
        await self.write(store, unowned("free", created_at=1.0))
        assert [claim.head.id for claim in await store.claim_runs(Query(limit=1), BOB)] == ["free"]

    async def test_a_claim_has_the_log_from_the_base_on(self, store: Store) -> None:
        await self.write(store, create("run"), commit("run", 2, 3, 4, change=HeadChange(base=3)))
        claim = await self.claim(store, BOB)
        assert claim is not None
        assert claim.entries == (entry(3), entry(4))

    async def test_a_claim_has_the_mail_in_order(self, store: Store) -> None:
        await self.write(store, create("run"))
        for n in range(3):
            await store.post_mail("run", Mail("send", b"%d" % n))
        claim = await self.claim(store, BOB)
        assert claim is not None
        assert [mail.body for mail in claim.mail] == [b"0", b"1", b"2"]
        assert list(claim.mail) == await self.mail(store, by=BOB, fence=2)

    @pytest.mark.parametrize(
        ("query", "claimed"),
        [
            (Query(states=(("pending", None),)), {"fresh"}),
            (Query(states=(("running", False),)), {"orphan"}),
            (Query(states=(("running", True),)), set()),
            (Query(states=(("pending", False), ("waiting", None))), {"fresh", "due", "mailed"}),
            (Query(flows=("b",)), {"due"}),
            (Query(due_by=50.0), {"due"}),
            (Query(has_mail=True), {"mailed"}),
            (Query(has_mail=True, mail_kinds=("riddle", "send")), {"mailed"}),
            (Query(has_mail=True, mail_kinds=("riddle",)), set()),
            (Query(has_mail=False, mail_kinds=("riddle",)), {"fresh", "orphan", "due", "mailed"}),
            (Query(has_mail=True, mail_kinds=("send",), in_turn=True), {"mailed"}),
            (Query(has_mail=True, mail_kinds=("riddle",), in_turn=True), set()),
            (Query(ids=("due", "live", "missing")), {"due"}),
            (Query(), {"fresh", "orphan", "due", "mailed"}),
        ],
    )
    async def test_runs_are_claimed_by_query(self, store: Store, query: Query, claimed: set[str]) -> None:
        self.beat(store, ALICE)
        await self.write(
            store,
            unowned("fresh"),
            create("live", owner=ALICE),
            create("orphan", owner=CAROL),
            unowned("due", status="waiting", flow="b", wake_at=50.0),
            unowned("mailed", status="waiting", wake_at=51.0),
        )
        await store.post_mail("mailed", Mail("send"))
        await store.post_mail("live", Mail("send"))
        assert {claim.head.id for claim in await store.claim_runs(query, BOB)} == claimed
        heads = await store.read_heads(["fresh", "live", "orphan", "due", "mailed"])
        assert {one.id for one in heads if one is not None and one.owner == BOB} == claimed

    async def test_of_many_claims_at_once_exactly_one_wins(self, store: Store) -> None:
        await self.write(store, unowned("run"))
        names = [f"{n:015x}" for n in range(1, 9)]
        for name in names:
            self.beat(store, name)
        won = await asyncio.gather(*(self.claim(store, name) for name in names))
        winners = [claim for claim in won if claim is not None]
        assert len(winners) == 1
        assert winners[0].head == await self.head(store)
        assert winners[0].head.fence == 1

    async def test_owners_are_listed_with_what_they_said(self, store: Store, clock: ManualClock) -> None:
        assert await store.list_owners() == []
        self.beat(store, ALICE, LEASE)
        self.beat(store, BOB, LEASE * 10)
        await self.pass_time(clock, LEASE + 1)
        found = {one.id: one for one in await store.list_owners()}
        assert found[BOB].alive
        assert found[BOB].name == owner(BOB).name
        assert ALICE not in found or not found[ALICE].alive
        self.beat(store, ALICE)
        again = {one.id: one for one in await store.list_owners()}
        assert set(again) == {ALICE, BOB}
        assert again[ALICE].alive
        assert again[ALICE].beat_at - again[BOB].beat_at == pytest.approx(LEASE + 1, abs=1)

    async def test_a_retired_owner_is_not_listed_as_alive(self, store: Store) -> None:
        self.beat(store, ALICE)
        await store.retire_owner(ALICE)
        assert not any(one.alive for one in await store.list_owners())
