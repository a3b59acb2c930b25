"""The life of a store and of a run in it: opened, closed, reopened, deleted, watched, inspected."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from holdfast.model import HeadChange, Mail, Posted, Query, Refusal
from holdfast.store.base import Store
from holdfast.testing.build import ALICE, BOB, CAROL, commit, create, entry
from holdfast.testing.contract.base import ContractBase, MakeStore

# Far longer than a store needs, far shorter than a test may take: it only bounds a failing test.
AT_MOST = 20.0

Change = Callable[[Store], Awaitable[Any]]

CHANGES: dict[str, Change] = {
    "commit": lambda store: store.commit([commit("run", 2)]),
    "create": lambda store: store.commit([create("new")]),
    "mail": lambda store: store.post_mail("run", Mail("send")),
    "claim": lambda store: store.claim_runs(Query(ids=("run",)), BOB),
    "delete": lambda store: store.delete_run("run"),
    "retire": lambda store: store.retire_owner(CAROL),
}


class LifeContract(ContractBase):
    """What `open`, `close`, `delete_run`, `wait_change` and `inspect` promise."""

    async def test_the_store_declares_exactly_what_it_can_do(self, store: Store) -> None:
        assert store.capabilities == self.capabilities
        assert store.capabilities <= {"durable", "shared", "inline"}

    async def test_opening_and_closing_twice_equals_once(self, make_store: MakeStore) -> None:
        store = make_store()
        await store.open()
        await self.write(store, create("run"))
        await store.open()
        assert await self.seqs(store) == [1]
        await self.write(store, commit("run", 2))
        await store.close()
        await store.close()

    async def test_a_store_that_was_never_opened_can_be_closed(self, make_store: MakeStore) -> None:
        await make_store().close()

    async def test_everything_is_still_there_after_reopening(self, store: Store, make_store: MakeStore) -> None:
        self.need(store, "durable")
        await self.write(store, create("run", metadata=b'{"k":1}'), create("Other", owner=None, created_at=5.0))
        await self.write(store, commit("run", 2, 3, change=HeadChange(status="waiting", wake_at=7.5)))
        for key in ("waiting", "taken"):
            await store.post_mail("run", Mail("answer", b'"x"', key))
        _, taken = await self.mail(store)
        await self.write(store, commit("run", 4, take=(taken.id,), rebase=entry(2)))
        await store.post_mail("run", Mail("answer", b'"y"', "late"))
        assert await self.claim(store, BOB) is not None
        before = await self.all_of(store)
        listed = await store.list_heads(Query())
        await store.close()

        again = make_store()
        await again.open()
        assert await self.all_of(again) == before
        assert await again.list_heads(Query()) == listed
        assert [mail.key for mail in before[2]] == ["waiting", "late"]
        assert before[2][1].id > taken.id
        assert await again.post_mail("run", Mail("answer", b"1", "taken")) is Posted.DUPLICATE
        replies = await again.commit([commit("run", 5), commit("run", 5, owner=BOB, fence=2)])
        assert [reply.refused for reply in replies] == [Refusal.STALE, None]
        assert await again.inspect() == []
        await again.close()

    async def test_the_same_object_can_be_opened_again_after_closing(self, store: Store) -> None:
        self.need(store, "durable")
        await self.write(store, create("run"))
        await store.close()
        await store.open()
        await self.write(store, commit("run", 2))
        assert await self.seqs(store) == [1, 2]

    async def test_a_deleted_run_is_gone_with_all_it_had(self, store: Store) -> None:
        await self.write(store, create("run"), create("other"), commit("run", 2))
        await store.post_mail("run", Mail("send"))
        assert await store.delete_run("run") is True
        assert await store.read_heads(["run"]) == [None]
        assert await store.read_entries("run") == []
        assert [head.id for head in await store.list_heads(Query())] == ["other"]
        assert await store.claim_runs(Query(ids=("run",)), BOB) == []
        assert await store.delete_run("run") is False

    async def test_a_run_of_a_live_owner_is_not_deleted(self, store: Store) -> None:
        self.beat(store, ALICE)
        await self.write(store, create("run"))
        before = await self.all_of(store)
        assert await store.delete_run("run") is False
        assert await self.all_of(store) == before
        await self.write(store, commit("run", 2, change=HeadChange(owner=None)))
        assert await store.delete_run("run") is True

    async def test_a_run_of_a_dead_owner_is_deleted(self, store: Store) -> None:
        self.beat(store, ALICE)
        await self.write(store, create("run"))
        await store.retire_owner(ALICE)
        assert await store.delete_run("run") is True

    async def test_a_deleted_id_can_be_used_again(self, store: Store) -> None:
        await self.write(store, create("run", flow="old"), commit("run", 2, 3))
        await store.delete_run("run")
        await self.write(store, create("run", flow="new"))
        assert (await self.head(store)).flow == "new"
        assert await self.seqs(store) == [1]

    async def test_waiting_for_a_change_begins_at_once(self, store: Store) -> None:
        assert await asyncio.wait_for(store.wait_change(0, 1000.0), AT_MOST) != 0

    async def test_waiting_for_a_change_ends_after_the_timeout(self, store: Store) -> None:
        seen = await store.wait_change(0, 0.0)
        for timeout in (0.0, 0.01):
            seen = await asyncio.wait_for(store.wait_change(seen, timeout), AT_MOST)

    @pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
    async def test_who_waits_for_a_change_is_woken(self, store: Store, change: Change) -> None:
        self.beat(store, CAROL)
        await self.write(store, create("run"))
        seen = await store.wait_change(0, 0.0)
        waiting = asyncio.create_task(store.wait_change(seen, 1000.0))
        await asyncio.sleep(0)
        await change(store)
        assert await asyncio.wait_for(waiting, AT_MOST) != 0

    @pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
    async def test_a_change_before_the_waiting_began_counts(self, store: Store, change: Change) -> None:
        self.beat(store, CAROL)
        await self.write(store, create("run"))
        seen = await store.wait_change(0, 0.0)
        await change(store)
        await asyncio.wait_for(store.wait_change(seen, 1000.0), AT_MOST)

    async def test_waiting_can_be_cancelled(self, store: Store) -> None:
        seen = await store.wait_change(0, 0.0)
        waiting = asyncio.create_task(store.wait_change(seen, 1000.0))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await self.write(store, create("run"))

    async def test_a_healthy_store_has_no_problems(self, store: Store) -> None:
        assert await store.inspect() == []
        self.beat(store, ALICE)
        await self.write(store, create("run"), commit("run", 2, 3), create("gone"), create("Free", owner=None))
        await store.post_mail("run", Mail("send"))
        await self.write(store, commit("run", rebase=entry(2)))
        await self.claim(store, BOB, "Free")
        await store.delete_run("gone")
        before = await self.all_of(store)
        assert await store.inspect() == []
        assert await self.all_of(store) == before

    async def test_a_heartbeat_comes_from_a_thread_without_an_event_loop(self, store: Store) -> None:
        await self.write(store, create("run"))
        threads = [threading.Thread(target=self.beat, args=(store, name)) for name in (ALICE, BOB, ALICE)]
        for thread in threads:
            thread.start()
        for thread in threads:
            await asyncio.to_thread(thread.join, AT_MOST)
        assert (await self.head(store)).owned
        assert {one.id for one in await store.list_owners() if one.alive} == {ALICE, BOB}

    async def test_a_local_store_can_be_used_from_another_thread(self, store: Store) -> None:
        self.need(store, "inline")
        await self.write(store, create("run"))

        async def elsewhere() -> list[int]:
            await self.write(store, commit("run", 2))
            await store.post_mail("run", Mail("send"))
            return await self.seqs(store)

        seen = await store.wait_change(0, 0.0)
        waiting = asyncio.create_task(store.wait_change(seen, 1000.0))
        assert await asyncio.to_thread(asyncio.run, elsewhere()) == [1, 2]
        await asyncio.wait_for(waiting, AT_MOST)
        assert len(await self.mail(store)) == 1

    async def test_a_local_store_serves_many_threads_at_once(self, store: Store) -> None:
        self.need(store, "inline")

        async def live(run: str) -> None:
            await self.write(store, create(run))
            for seq in range(2, 12):
                await self.write(store, commit(run, seq))

        await asyncio.gather(*(asyncio.to_thread(asyncio.run, live(f"run-{n}")) for n in range(4)))
        for n in range(4):
            assert await self.seqs(store, f"run-{n}") == list(range(1, 12))
