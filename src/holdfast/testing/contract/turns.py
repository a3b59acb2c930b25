"""Queues: whose turn it is, what is put off, and how many may be under way at once."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from holdfast.model import HeadChange, Limit, Mail, Query, RunStatus
from holdfast.store.base import Store
from holdfast.testing.build import ALICE, BOB, CAROL, commit, create, owner
from holdfast.testing.clock import ManualClock
from holdfast.testing.contract.base import LEASE, ContractBase
from holdfast.testing.contract.claims import unowned

AT_MOST = 10.0
NOBODYS = tuple((str(status), False) for status in RunStatus)
MANY = [f"{n:015x}" for n in range(1, 7)]


class TurnContract(ContractBase):
    """What claims promise with `in_turn` and `limits`."""

    async def turns(self, store: Store, by: str = BOB, **fields: object) -> list[str]:
        """The ids that a claim of what nobody has gets, in order."""
        self.beat(store, by)
        query = Query(in_turn=True, **({"states": NOBODYS} | fields))  # type: ignore[arg-type]
        return [claim.head.id for claim in await store.claim_runs(query, by)]

    async def test_the_queue_the_priority_and_the_key_of_a_run_are_kept(self, store: Store) -> None:
        await self.write(store, unowned("run", queue="mail", priority=-7, key="é'; --"), unowned("plain"))
        found = await self.head(store)
        assert (found.queue, found.priority, found.key) == ("mail", -7, "é'; --")
        found = await self.head(store, "plain")
        assert (found.queue, found.priority, found.key) == ("default", 0, None)

    async def test_the_higher_priority_goes_first_and_the_older_run_among_equals(self, store: Store) -> None:
        await self.write(
            store,
            unowned("young", created_at=3.0),
            unowned("old", created_at=1.0),
            unowned("twin-b", created_at=2.0),
            unowned("twin-a", created_at=2.0),
            unowned("urgent", created_at=9.0, priority=5),
            unowned("whenever", created_at=0.0, priority=-1),
        )
        assert await self.turns(store, limit=2) == ["urgent", "old"]
        assert await self.turns(store) == ["twin-a", "twin-b", "young", "whenever"]

    async def test_queues_take_turns_however_long_one_of_them_is(self, store: Store) -> None:
        await self.write(store, *(unowned(f"bulk-{n}", queue="bulk", created_at=float(n)) for n in range(6)))
        await self.write(store, *(unowned(f"mail-{n}", queue="mail", created_at=50.0 + n) for n in range(2)))
        assert await self.turns(store, limit=5) == ["bulk-0", "mail-0", "bulk-1", "mail-1", "bulk-2"]

    async def test_what_is_under_way_anywhere_counts_for_the_turn_of_its_queue(self, store: Store) -> None:
        self.beat(store, ALICE)
        await self.write(store, create("under-way-1", queue="bulk"), create("under-way-2", queue="bulk"))
        await self.write(store, create("orphan", owner=CAROL, fence=1, queue="mail", created_at=9.0))
        await self.write(store, *(unowned(f"bulk-{n}", queue="bulk", created_at=1.0) for n in range(2)))
        await self.write(store, *(unowned(f"mail-{n}", queue="mail", created_at=5.0 + n) for n in range(2)))
        expected = ["mail-0", "mail-1", "bulk-0", "orphan", "bulk-1"]
        assert await self.turns(store) == expected

    async def test_only_the_queues_that_are_asked_for_are_claimed(self, store: Store) -> None:
        await self.write(store, unowned("a", queue="a"), unowned("b", queue="b"), unowned("c", queue="c"))
        assert await self.turns(store, queues=("a", "b", "none")) == ["a", "b"]
        assert await self.turns(store, queues=()) == []
        assert [found.id for found in await store.list_heads(Query(queues=("c",)))] == ["c"]

    async def test_a_run_that_is_put_off_is_left_alone_until_then(self, store: Store) -> None:
        await self.write(store, unowned("now"), unowned("later", wake_at=50.0), unowned("much-later", wake_at=99.0))
        assert await self.turns(store, idle_by=49.0) == ["now"]
        assert await self.turns(store, idle_by=50.0) == ["later"]

    async def test_runs_can_be_left_out_and_asked_for_by_owner(self, store: Store) -> None:
        await self.write(store, unowned("a"), unowned("b"), create("c"))
        assert await self.turns(store, but=("a", "c")) == ["b"]
        assert {found.id for found in await store.list_heads(Query(owner=BOB))} == {"b"}
        assert {found.id for found in await store.list_heads(Query(owner=ALICE))} == {"c"}
        assert {found.id for found in await store.list_heads(Query(but=("a",)))} == {"b", "c"}

    async def test_runs_that_have_ended_get_no_turn(self, store: Store) -> None:
        ended = [unowned(status, status=status) for status in ("completed", "failed", "cancelled")]
        await self.write(store, *ended, unowned("open"))
        assert await self.turns(store) == ["open"]

    async def test_no_more_runs_of_a_flow_are_under_way_than_its_limit(self, store: Store) -> None:
        self.beat(store, ALICE)
        await self.write(store, create("under-way", flow="f"))
        await self.write(store, *(unowned(f"f-{n}", flow="f", created_at=float(n)) for n in range(4)))
        await self.write(store, unowned("g", flow="g", created_at=9.0))
        limits = (Limit("f", 3), Limit("other", 0))
        assert await self.turns(store, limits=limits) == ["f-0", "f-1", "g"]
        assert await self.turns(store, limits=limits) == []
        change = HeadChange(status="completed", owner=None)
        await self.write(store, commit("under-way", 2, change=change))
        assert await self.turns(store, limits=limits) == ["f-2"]

    async def test_a_limit_per_key_counts_each_key_by_itself_and_not_those_without(self, store: Store) -> None:
        for n, key in enumerate(["x", "x", "y", "x", None, None]):
            await self.write(store, unowned(f"run-{n}", flow="f", key=key, created_at=float(n)))
        await self.write(store, unowned("of-g", flow="g", key="x", created_at=9.0))
        limits = (Limit("f", None, 1),)
        assert await self.turns(store, limits=limits) == ["run-0", "run-2", "run-4", "run-5", "of-g"]
        assert await self.turns(store, limits=limits) == []

    async def test_what_exceeds_a_limit_takes_nobodys_place(self, store: Store) -> None:
        await self.write(store, *(unowned(f"f-{n}", flow="f", key="x", created_at=float(n)) for n in range(40)))
        await self.write(store, unowned("g", flow="g", created_at=99.0))
        assert await self.turns(store, limits=(Limit("f", None, 1),), limit=2) == ["f-0", "g"]
        await self.write(store, unowned("h", flow="g", created_at=99.0))
        assert await self.turns(store, limits=(Limit("f", None, 1),), limit=2) == ["h"]

    async def test_the_run_of_a_dead_owner_waits_for_its_turn_behind_those_that_exceed_a_limit(
        self, store: Store
    ) -> None:
        await self.write(store, create("orphan", owner=CAROL, flow="g", created_at=9.0))
        await self.write(store, *(unowned(f"f-{n}", flow="f", key="x", created_at=float(n)) for n in range(3)))
        await self.write(store, unowned("g", flow="g", created_at=5.0))
        assert await self.turns(store, limits=(Limit("f", None, 1),), limit=2) == ["f-0", "g"]

    async def test_the_runs_of_a_dead_owner_do_not_count(self, store: Store, clock: ManualClock) -> None:
        self.beat(store, ALICE)
        await self.write(store, create("stuck", flow="f"), unowned("next", flow="f", created_at=1.0))
        assert await self.turns(store, limits=(Limit("f", 1),)) == []
        await self.pass_time(clock, LEASE + 1)
        assert await self.turns(store, limits=(Limit("f", 1),)) == ["next"]

    @pytest.mark.parametrize("limit", [Limit("flow", 1), Limit("flow", None, 1)])
    async def test_a_run_that_the_claimer_has_already_does_not_count_against_itself(
        self, store: Store, limit: Limit
    ) -> None:
        self.beat(store, ALICE)
        await self.write(store, create("own", key="k"), unowned("next", key="k", created_at=9000.0))
        assert await self.turns(store, ALICE, limits=(limit,)) == []
        assert await self.turns(store, BOB, states=None, limits=(limit,)) == []
        assert await self.turns(store, ALICE, states=None, limits=(limit,)) == ["own"]

    async def test_a_run_that_the_claimer_has_already_gives_way_to_one_whose_turn_is_before(self, store: Store) -> None:
        self.beat(store, ALICE)
        await self.write(store, create("own"), unowned("urgent", priority=5))
        assert await self.turns(store, ALICE, states=None, limits=(Limit("flow", 1),)) == ["urgent"]

    async def test_a_run_that_the_claimer_has_already_does_not_count_for_the_turn_of_its_queue(
        self, store: Store
    ) -> None:
        self.beat(store, ALICE)
        await self.write(store, create("own-a", queue="a", priority=7), create("own-b", queue="b"))
        await self.write(store, unowned("free-a", queue="a", priority=100))
        assert await self.turns(store, ALICE, states=None, limit=1) == ["free-a"]

    async def test_many_who_claim_at_once_do_not_exceed_a_limit_together(self, store: Store) -> None:
        await self.write(store, *(unowned(f"run-{n}", flow="f", key="x") for n in range(12)))
        limits = (Limit("f", 5, 4),)
        won = await asyncio.gather(*(self.turns(store, name, limits=limits, limit=2) for name in MANY))
        assert sum(len(ids) for ids in won) <= 4
        while left := 4 - len(await store.list_heads(Query(states=(("pending", True),)))):
            assert len(await self.turns(store, MANY[0], limits=limits, limit=1)) == 1, left
        assert await self.turns(store, MANY[1], limits=limits) == []

    async def test_many_who_claim_at_once_get_each_run_once(self, store: Store, other: Store) -> None:
        await self.write(store, *(unowned(f"run-{n}", queue=f"q{n % 3}") for n in range(30)))
        got: list[str] = []
        while len(got) < 30:
            won = await asyncio.gather(
                *(self.turns([store, other][n % 2], name, limit=3) for n, name in enumerate(MANY))
            )
            assert any(won)
            got += [run for ids in won for run in ids]
        assert sorted(got) == sorted(f"run-{n}" for n in range(30))

    async def test_what_an_owner_says_of_itself_is_kept(self, store: Store) -> None:
        said = replace(owner(ALICE), info='{"queues":["é","b"],"n":1}'.encode())
        store.beat(said, LEASE)
        assert [one.info for one in await store.list_owners()] == [said.info]
        store.beat(replace(said, info=b"{}"), LEASE)
        assert [one.info for one in await store.list_owners()] == [b"{}"]

    @pytest.mark.parametrize("what", ["created", "given up", "mail", "retired"])
    async def test_whoever_waits_for_something_to_claim_is_woken(self, store: Store, other: Store, what: str) -> None:
        self.beat(store, ALICE)
        await self.write(store, create("run"))
        seen = await other.wait_change(0, 0.0, ready=True)
        waiting = asyncio.create_task(other.wait_change(seen, AT_MOST * 2, ready=True))
        await asyncio.sleep(0)
        match what:
            case "created":
                await self.write(store, unowned("new"))
            case "given up":
                await self.write(store, commit("run", 2, change=HeadChange(status="interrupted", owner=None)))
            case "mail":
                await store.post_mail("run", Mail("send"))
            case _:
                await store.retire_owner(ALICE)
        assert await asyncio.wait_for(waiting, AT_MOST) != seen
