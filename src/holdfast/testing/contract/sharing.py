"""Two store objects on one database, as two processes would have them. Only for `shared` stores."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.model import HeadChange, Mail, Posted, Query, Refusal
from holdfast.store.base import Store
from holdfast.testing.build import ALICE, BOB, CAROL, commit, create, entry
from holdfast.testing.clock import ManualClock
from holdfast.testing.contract.base import LEASE, ContractBase
from holdfast.testing.contract.life import AT_MOST, CHANGES, Change


class SharingContract(ContractBase):
    """What holds between several users of one database."""

    async def test_what_one_writes_the_other_sees_at_once(self, store: Store, other: Store) -> None:
        await self.write(store, create("run"))
        assert await self.all_of(other) == await self.all_of(store)
        await self.write(other, commit("run", 2))
        await self.write(store, commit("run", 3, change=HeadChange(status="paused")))
        await other.post_mail("run", Mail("send", b'"from other"'))
        assert await self.seqs(other) == [1, 2, 3]
        assert await self.all_of(other) == await self.all_of(store)
        assert [mail.body for mail in await self.mail(store)] == [b'"from other"']
        assert await store.list_heads(Query()) == await other.list_heads(Query())

    async def test_the_fence_holds_between_them(self, store: Store, other: Store) -> None:
        await self.write(store, create("run"), commit("run", 2))
        claim = await self.claim(other, BOB)
        assert claim is not None
        assert [one.seq for one in claim.entries] == [1, 2]
        (reply,) = await store.commit([commit("run", 3)])
        assert reply.refused is Refusal.STALE
        await self.write(other, commit("run", 3, owner=BOB, fence=2))
        assert await self.seqs(store) == [1, 2, 3]

    async def test_an_id_that_the_other_took_is_taken(self, store: Store, other: Store) -> None:
        await self.write(other, create("run"))
        (reply,) = await store.commit([create("run")])
        assert reply.refused is Refusal.EXISTS

    async def test_an_owner_lives_for_both(self, store: Store, other: Store, clock: ManualClock) -> None:
        self.beat(store, ALICE)
        await self.write(store, create("run"))
        assert (await self.head(other)).owned
        assert await self.claim(other, BOB) is None
        assert await other.delete_run("run") is False
        assert {one.id for one in await other.list_owners() if one.alive} == {ALICE}
        await self.pass_time(clock, LEASE + 1)
        assert not (await self.head(other)).owned
        assert await self.claim(other, BOB) is not None

    async def test_who_retires_in_one_is_dead_for_both(self, store: Store, other: Store) -> None:
        self.beat(store, ALICE)
        await self.write(store, create("run"))
        await store.retire_owner(ALICE)
        assert await self.claim(other, BOB) is not None

    async def test_of_two_claims_at_once_exactly_one_wins(self, store: Store, other: Store) -> None:
        runs = [f"run-{n}" for n in range(10)]
        await self.write(store, *(create(run, owner=None, fence=0, status="pending") for run in runs))
        self.beat(store, ALICE)
        self.beat(other, BOB)
        claims = await asyncio.gather(
            *(self.claim(mine, name, run) for run in runs for mine, name in ((store, ALICE), (other, BOB)))
        )
        won = [claim.head.id for claim in claims if claim is not None]
        assert sorted(won) == sorted(runs)
        assert all(head.fence == 1 for head in await store.list_heads(Query()))

    async def test_many_commits_of_both_leave_no_gap_and_no_double(self, store: Store, other: Store) -> None:
        await self.write(store, create("run"))

        async def push(mine: Store, body: bytes) -> list[int]:
            accepted: list[int] = []
            while len(accepted) < 8:
                seq = (await self.head(mine)).seq + 1
                (reply,) = await mine.commit([commit("run", entries=(entry(seq, body=body),))])
                if reply.refused is None:
                    accepted.append(seq)
                else:
                    assert reply.refused is Refusal.GAP
            return accepted

        mine, theirs = await asyncio.gather(push(store, b'"mine"'), push(other, b'"theirs"'))
        entries = await store.read_entries("run")
        assert [one.seq for one in entries] == list(range(1, 18))
        assert [one.seq for one in entries if one.body == b'"mine"'] == mine
        assert [one.seq for one in entries if one.body == b'"theirs"'] == theirs

    async def test_a_key_is_used_up_for_both(self, store: Store, other: Store) -> None:
        await self.write(store, create("run"))
        posts = (mine.post_mail("run", Mail("answer", b"1", "k")) for mine in (store, other) * 4)
        outcomes = await asyncio.gather(*posts)
        assert sorted(outcomes) == [Posted.ACCEPTED, *[Posted.DUPLICATE] * 7]

    async def test_what_one_deletes_is_gone_for_the_other(self, store: Store, other: Store) -> None:
        await self.write(store, create("run"))
        assert await self.seqs(other) == [1]
        assert await store.delete_run("run")
        assert await other.read_heads(["run"]) == [None]
        assert await other.post_mail("run", Mail("send")) is Posted.NO_RUN
        (reply,) = await other.commit([commit("run", 2)])
        assert reply.refused is Refusal.STALE
        await self.write(other, create("run", flow="new", owner=BOB))
        assert (await self.head(store)).flow == "new"
        (reply,) = await store.commit([commit("run", 2, owner=ALICE)])
        assert reply.refused is Refusal.STALE

    async def test_a_rebase_by_one_is_seen_by_the_other(self, store: Store, other: Store) -> None:
        await self.write(store, create("run"), commit("run", 2, 3, 4))
        assert await self.seqs(other) == [1, 2, 3, 4]
        await store.post_mail("run", Mail("answer", b"1", "k"))
        await self.write(store, commit("run", 5, rebase=entry(3, body=b'"snapshot"')))
        assert await other.read_entries("run") == await store.read_entries("run")
        await self.write(other, commit("run", 6, rebase=entry(4, body=b'"snapshot"')))
        await self.write(store, commit("run", 7))
        assert await self.seqs(other) == [4, 5, 6, 7]
        assert await self.all_of(other) == await self.all_of(store)

    @pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
    async def test_a_change_by_one_wakes_the_other(self, store: Store, other: Store, change: Change) -> None:
        self.beat(store, CAROL)
        await self.write(store, create("run"))
        seen = await other.wait_change(0, 0.0)
        waiting = asyncio.create_task(other.wait_change(seen, AT_MOST * 2))
        await asyncio.sleep(0)
        await change(store)
        await asyncio.wait_for(waiting, AT_MOST)

    async def test_closing_one_leaves_the_other_at_work(self, store: Store, other: Store) -> None:
        self.beat(store, ALICE)
        await self.write(store, create("run"))
        await other.close()
        await self.write(store, commit("run", 2))
        assert await self.seqs(store) == [1, 2]
        assert (await self.head(store)).owned
