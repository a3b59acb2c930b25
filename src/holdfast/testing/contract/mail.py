"""The inbox: in order, once per key, and taken only by the commit that says so."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast.model import HeadChange, Mail, Posted, Query, Refusal, Reply
from holdfast.store.base import Store
from holdfast.testing.build import BOB, commit, create, entry
from holdfast.testing.clock import ManualClock
from holdfast.testing.contract.base import ContractBase
from holdfast.testing.contract.logs import HOSTILE_JSON, HOSTILE_TEXTS


class MailContract(ContractBase):
    """What `post_mail` promises, and what commits do with mail."""

    async def test_mail_waits_in_order_under_ids_that_rise(self, store: Store) -> None:
        await self.write(store, create("run"))
        for n in range(12):
            assert await store.post_mail("run", Mail("send", b"%d" % n)) is Posted.ACCEPTED
        mail = await self.mail(store)
        assert [one.body for one in mail] == [b"%d" % n for n in range(12)]
        ids = [one.id for one in mail]
        assert ids == sorted(set(ids))
        assert ids[0] > 0

    async def test_id_and_time_of_mail_are_given_by_the_store(self, store: Store, clock: ManualClock) -> None:
        await self.write(store, create("run"))
        await store.post_mail("run", Mail("send", at=1.0, id=77))
        await self.pass_time(clock, 100)
        await store.post_mail("run", Mail("send", at=1.0, id=5))
        first, second = await self.mail(store)
        assert first.id < second.id
        assert second.at - first.at == pytest.approx(100, abs=5)
        assert first.at > 1.0

    async def test_ids_of_mail_rise_also_when_all_before_was_taken(self, store: Store) -> None:
        await self.write(store, create("run"))
        await store.post_mail("run", Mail("send"))
        (first,) = await self.mail(store)
        await self.write(store, commit("run", take=(first.id,)))
        await store.post_mail("run", Mail("send"))
        (second,) = await self.mail(store)
        assert second.id > first.id

    async def test_the_commits_of_a_batch_take_mail_one_after_the_other(self, store: Store) -> None:
        await self.write(store, create("run"))
        for _ in range(3):
            await store.post_mail("run", Mail("send"))
        first, second, third = (one.id for one in await self.mail(store))
        batch = [commit("run", 2, take=(first,)), commit("run", 3), commit("run", 4, take=(first, second, third))]
        assert (await store.commit(batch))[-1] == Reply()
        assert await store.list_heads(Query(has_mail=True)) == []
        assert await store.post_mail("run", Mail("send")) is Posted.ACCEPTED
        assert len(await self.mail(store)) == 1

    @pytest.mark.parametrize("text", HOSTILE_TEXTS)
    async def test_kind_and_key_come_back_verbatim(self, store: Store, text: str) -> None:
        await self.write(store, create("run"))
        assert await store.post_mail("run", Mail(text, b"1", text)) is Posted.ACCEPTED
        assert await store.post_mail("run", Mail(text, b"2", text)) is Posted.DUPLICATE
        (mail,) = await self.mail(store)
        assert (mail.kind, mail.key) == (text, text)

    @pytest.mark.parametrize("json", HOSTILE_JSON, ids=range(len(HOSTILE_JSON)))
    async def test_bodies_come_back_byte_for_byte(self, store: Store, json: bytes) -> None:
        await self.write(store, create("run"))
        await store.post_mail("run", Mail("send", json))
        assert [mail.body for mail in await self.mail(store)] == [json]

    async def test_mail_for_a_run_that_is_not_there_is_refused(self, store: Store) -> None:
        assert await store.post_mail("run", Mail("send")) is Posted.NO_RUN
        await self.write(store, create("run"))
        assert await self.mail(store) == []
        await store.delete_run("run")
        assert await store.post_mail("run", Mail("send")) is Posted.NO_RUN

    async def test_mail_with_a_key_is_accepted_once_in_the_life_of_a_run(self, store: Store) -> None:
        await self.write(store, create("run"))
        assert await store.post_mail("run", Mail("answer", b"1", "k")) is Posted.ACCEPTED
        assert await store.post_mail("run", Mail("answer", b"2", "k")) is Posted.DUPLICATE
        assert await store.post_mail("run", Mail("other", b"3", "k")) is Posted.DUPLICATE
        (mail,) = await self.mail(store)
        assert mail.body == b"1"
        await self.write(store, commit("run", 2, take=(mail.id,)))
        assert await store.post_mail("run", Mail("answer", b"4", "k")) is Posted.DUPLICATE
        assert await self.claim(store, BOB) is not None
        assert await store.post_mail("run", Mail("answer", b"5", "k")) is Posted.DUPLICATE
        assert await self.mail(store, by=BOB, fence=2) == []

    async def test_mail_without_a_key_is_always_accepted(self, store: Store) -> None:
        await self.write(store, create("run"))
        for _ in range(2):
            assert await store.post_mail("run", Mail("send", b"1")) is Posted.ACCEPTED
        assert len(await self.mail(store)) == 2

    async def test_keys_are_those_of_one_run(self, store: Store) -> None:
        await self.write(store, create("a"), create("b"))
        assert await store.post_mail("a", Mail("answer", key="k")) is Posted.ACCEPTED
        assert await store.post_mail("b", Mail("answer", key="k")) is Posted.ACCEPTED
        assert await store.post_mail("a", Mail("answer", key="K")) is Posted.ACCEPTED

    async def test_a_new_run_of_a_deleted_id_has_an_empty_inbox_and_no_used_keys(self, store: Store) -> None:
        await self.write(store, create("run"))
        await store.post_mail("run", Mail("answer", key="k"))
        assert await store.delete_run("run")
        await self.write(store, create("run"))
        assert await self.mail(store) == []
        assert await store.post_mail("run", Mail("answer", key="k")) is Posted.ACCEPTED

    async def test_a_commit_takes_exactly_the_mail_it_names(self, store: Store) -> None:
        await self.write(store, create("run"))
        for n in range(3):
            await store.post_mail("run", Mail("send", b"%d" % n))
        ids = [mail.id for mail in await self.mail(store)]
        (reply,) = await self.write(store, commit("run", 2, take=(ids[0], ids[2])))
        assert [mail.id for mail in reply.mail] == [ids[1]]
        assert [mail.id for mail in await self.mail(store)] == [ids[1]]

    async def test_taking_what_is_not_there_is_harmless(self, store: Store) -> None:
        await self.write(store, create("a"), create("b"))
        for n in range(3):
            await store.post_mail("b", Mail("send", b"%d" % n))
        before = await self.mail(store, "b")
        await self.write(store, commit("a", 2, take=(*(mail.id for mail in before), 10**9)))
        assert await self.mail(store, "b") == before
        await self.write(store, commit("b", take=(before[0].id,)))
        await self.write(store, commit("b", take=(before[0].id,)))
        assert await self.mail(store, "b") == before[1:]

    @pytest.mark.parametrize(
        "what",
        [
            {"entries": (entry(3),), "change": HeadChange(status="completed", owner=None)},
            {"entries": (entry(3), entry(4)), "change": HeadChange(status="failed", owner=None, error=b'"x"')},
            {"entries": (entry(3),)},
            {"entries": (entry(3),), "rebase": entry(2, body=b'"snapshot"')},
            {"change": HeadChange(attempt=2)},
            {},
        ],
        ids=["an end", "another end", "a step", "a rebase", "a change", "nothing"],
    )
    async def test_a_commit_is_refused_whole_until_its_owner_has_heard_of_all_mail(
        self, store: Store, what: dict[str, Any]
    ) -> None:
        await self.write(store, create("run"), commit("run", 2))
        await store.post_mail("run", Mail("send"))
        await store.post_mail("run", Mail("cancel"))
        first, second = (mail.id for mail in await self.mail(store))
        before = await self.all_of(store)
        for heard in (0, first):
            (reply,) = await store.commit([commit("run", heard=heard, **what)])
            assert reply.refused is Refusal.UNHEARD
            assert await self.all_of(store) == before
        await self.write(store, commit("run", heard=second, **what))

    async def test_of_mail_that_was_taken_nobody_need_have_heard(self, store: Store) -> None:
        await self.write(store, create("run"))
        await store.post_mail("run", Mail("answer", key="k"))
        await store.post_mail("run", Mail("send"))
        taken = tuple(mail.id for mail in await self.mail(store))
        await self.write(store, commit("run", 2, take=taken))
        await self.write(store, commit("run", 3, heard=0))
        await store.post_mail("run", Mail("send"))
        (mail,) = await self.mail(store)
        end = HeadChange(status="completed", owner=None)
        await self.write(store, commit("run", 4, take=(mail.id,)), commit("run", 5, heard=0, change=end))

    async def test_of_many_ends_in_a_batch_those_are_refused_whose_owner_has_not_heard_of_all(
        self, store: Store
    ) -> None:
        runs = [f"run-{n:02}" for n in range(40)]
        await self.write(store, *map(create, runs))
        for run in runs[::7]:
            await store.post_mail(run, Mail("cancel"))
        end = HeadChange(status="completed", owner=None, ended_at=5.0)
        replies = await store.commit([commit(run, 2, change=end, heard=0) for run in runs])
        refused = [run for run, reply in zip(runs, replies, strict=True) if reply.refused is Refusal.UNHEARD]
        assert refused == runs[::7]
        heads = await store.read_heads(runs)
        assert [head.id for head in heads if head is not None and head.status == "running"] == refused

    async def test_whoever_posts_mail_and_then_sees_the_run_go_on_is_heard_before_it_ends(self, store: Store) -> None:
        runs = [f"run-{n:02}" for n in range(20)]
        await self.write(store, *map(create, runs))
        end = HeadChange(status="completed", owner=None)

        async def ended(run: str) -> bool:
            (reply,) = await store.commit([commit(run, 2, change=end, heard=0)])
            return reply.refused is None

        async def seen_to_go_on(run: str) -> bool:
            await store.post_mail(run, Mail("cancel"))
            return (await self.head(store, run)).status == "running"

        for run in runs:
            has_ended, goes_on = await asyncio.gather(ended(run), seen_to_go_on(run))
            assert has_ended is not goes_on

    async def test_the_reply_to_a_commit_has_the_mail_that_still_waits(self, store: Store) -> None:
        await self.write(store, create("a"), create("b"))
        await store.post_mail("a", Mail("send", b'"for a"'))
        replies = await self.write(store, commit("a", 2), commit("b", 2))
        assert [[mail.body for mail in reply.mail] for reply in replies] == [[b'"for a"'], []]

    async def test_an_ended_or_unowned_run_still_gets_mail(self, store: Store) -> None:
        await self.write(store, create("run"), commit("run", 2, change=HeadChange(status="completed", owner=None)))
        assert await store.post_mail("run", Mail("send")) is Posted.ACCEPTED
        assert [head.id for head in await store.list_heads(Query(has_mail=True))] == ["run"]
        claim = await self.claim(store, BOB)
        assert claim is not None
        assert len(claim.mail) == 1

    async def test_mail_changes_nothing_of_the_head(self, store: Store) -> None:
        await self.write(store, create("run"))
        before = await self.head(store)
        await store.post_mail("run", Mail("pause", key="k"))
        assert await self.head(store) == before

    async def test_of_many_posts_with_one_key_exactly_one_is_accepted(self, store: Store) -> None:
        await self.write(store, create("run"))
        posts = (store.post_mail("run", Mail("answer", b"%d" % n, "k")) for n in range(10))
        outcomes = await asyncio.gather(*posts)
        assert sorted(outcomes) == [Posted.ACCEPTED, *[Posted.DUPLICATE] * 9]
        (mail,) = await self.mail(store)
        assert mail.body == b"%d" % outcomes.index(Posted.ACCEPTED)

    async def test_mail_that_comes_while_its_run_commits_is_not_lost(self, store: Store) -> None:
        await self.write(store, create("run"))

        async def post() -> None:
            for n in range(10):
                assert await store.post_mail("run", Mail("send", b"%d" % n)) is Posted.ACCEPTED

        async def take() -> list[bytes]:
            taken: list[Mail] = []
            for seq in range(2, 12):
                mail = await self.mail(store)
                await self.write(store, commit("run", seq, take=tuple(one.id for one in mail)))
                taken += mail
            return [mail.body for mail in taken]

        _, taken = await asyncio.gather(post(), take())
        left = [mail.body for mail in await self.mail(store)]
        assert taken + left == [b"%d" % n for n in range(10)]
