"""The log and the head as data: everything verbatim, ranges, and what a rebase drops."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from holdfast.model import Entry, HeadChange, Mail, Posted, Refusal
from holdfast.store.base import Store
from holdfast.testing.build import ALICE, commit, create, entry, head
from holdfast.testing.contract.base import ContractBase

HOSTILE_TEXTS = [
    "'; DROP TABLE runs;--",
    'a "quoted" \\ back\\slash',
    "two\r\nlines\tand a tab",
    "\x1b]52;c;\x07 \u202e right to left",
    "naïve 日本語 🪢 e\u0301",
    "{{7*7}} ${x} %s %(a)s :name ?1 $1 {0}",
    "<img src=x onerror=alert(1)>",
    " leading and trailing ",
    "",
    "null",
]

HOSTILE_JSON = [
    b"null",
    b"0",
    b'""',
    b"[ ]",
    b'{"b": 1 , "a" : 2.50, "a": 3}',
    b'{\n  "pretty": [\r\n 1,\t2]\n}',
    b' {"space":"around"} ',
    b"[1e400,-0.0,1.0,18446744073709551617,0.1000000000000000055]",
    '"é \\u00e9 \\ud800 \\/ 🪢"'.encode(),
    b'{"check":"x","entries":[{"seq":1}],"' + b"k" * 300 + b'":"\\n"}',
    b'"' + b"x" * 300_000 + b'"',
]


class LogContract(ContractBase):
    """What is written comes back as it was, and ranges and rebases do what they say."""

    @pytest.mark.parametrize("text", HOSTILE_TEXTS)
    async def test_texts_come_back_verbatim(self, store: Store, text: str) -> None:
        new = head("run", flow=text, status="waiting", waiting_for=text)
        first = entry(1, kind=text, check=text)
        await self.write(store, commit("run", create=new, entries=(first,)))
        found = await self.head(store)
        assert (found.flow, found.waiting_for) == (text, text)
        assert await store.read_entries("run") == [first]

    @pytest.mark.parametrize("json", HOSTILE_JSON, ids=range(len(HOSTILE_JSON)))
    async def test_json_comes_back_byte_for_byte(self, store: Store, json: bytes) -> None:
        first = entry(1, cursor=json, body=json)
        await self.write(store, commit("run", create=head("run", info=json, error=json), entries=(first,)))
        found = await self.head(store)
        assert (found.info, found.error, found.cursor) == (json, json, json)
        assert await store.read_entries("run") == [first]
        await self.write(store, commit("run", change=HeadChange(info=b"{}", error=None)))
        await self.write(store, commit("run", change=HeadChange(info=json, error=json)))
        assert await self.head(store) == found
        claim = await self.claim(store, ALICE)
        assert claim is not None
        assert claim.entries == (first,)

    async def test_every_field_of_a_head_comes_back(self, store: Store) -> None:
        full = head(
            "run.with-all_fields",
            flow="flow",
            status="failed",
            owner=ALICE,
            fence=2**40,
            attempt=7,
            base=1,
            floor=1,
            wake_at=1700000000.1234567,
            expires_at=0.0,
            parent="the-parent",
            metadata=b'{"caller":"u7","n":1.0,"deep":{"list":[1,2]}}',
            info=b'{"steps":["a","b"],"total":2}',
            error=b'{"type":"ValueError","message":"no"}',
            waiting_for="an answer",
            created_at=1699999999.000001,
            started_at=0.1,
            ended_at=253402300799.0,
        )
        first = entry(1, fence=2**40)
        await self.write(store, commit(full.id, create=full, fence=2**40, entries=(first,)))
        expected = replace(full, seq=1, cursor=first.cursor, updated_at=first.at)
        assert await store.read_heads([full.id]) == [expected]

    async def test_a_head_with_nothing_optional_comes_back(self, store: Store) -> None:
        bare = head("run", fence=0, created_at=0.0)
        await self.write(store, commit("run", 1, fence=0, create=bare, change=HeadChange(owner=None)))
        found = await self.head(store)
        assert found == replace(bare, owner=None, seq=1, cursor=entry(1).cursor, updated_at=entry(1).at)

    async def test_whether_an_owner_lives_is_never_stored(self, store: Store) -> None:
        await self.write(store, create("run", owned=True))
        assert not (await self.head(store)).owned

    async def test_many_entries_go_in_one_commit(self, store: Store) -> None:
        await self.write(store, create("run"), commit("run", *range(2, 501)))
        assert await self.seqs(store) == list(range(1, 501))

    @pytest.mark.parametrize(
        ("range_", "seqs"),
        [
            ({}, [1, 2, 3, 4, 5]),
            ({"after": 2}, [3, 4, 5]),
            ({"after": 5}, []),
            ({"after": 99}, []),
            ({"upto": 2}, [1, 2]),
            ({"upto": 0}, []),
            ({"upto": 99}, [1, 2, 3, 4, 5]),
            ({"after": 1, "upto": 3}, [2, 3]),
            ({"after": 3, "upto": 3}, []),
            ({"after": 4, "upto": 2}, []),
            ({"limit": 2}, [1, 2]),
            ({"after": 2, "limit": 2}, [3, 4]),
            ({"after": 2, "upto": 3, "limit": 9}, [3]),
            ({"limit": 0}, []),
            ({"after": 2**53, "upto": 2**53 + 1, "limit": 10**9}, []),
        ],
    )
    async def test_entries_are_read_by_range(self, store: Store, range_: dict[str, int], seqs: list[int]) -> None:
        await self.write(store, create("run"), create("other"), commit("run", 2, 3), commit("other", 2))
        await self.write(store, commit("run", 4), commit("run", 5))
        assert [one.seq for one in await store.read_entries("run", **range_)] == seqs

    async def test_a_run_that_is_not_there_has_no_entries(self, store: Store) -> None:
        assert await store.read_entries("missing") == []

    async def _five(self, store: Store) -> Entry:
        await self.write(store, create("run"), commit("run", 2, 3, 4, 5))
        return entry(3, body=b'{"full":"snapshot"}', check="rebased")

    async def test_a_rebase_replaces_its_entry_and_drops_what_lies_before(self, store: Store) -> None:
        snapshot = await self._five(store)
        before = await self.head(store)
        await self.write(store, commit("run", rebase=snapshot, change=HeadChange(base=3, floor=3)))
        assert await store.read_entries("run") == [snapshot, entry(4), entry(5)]
        assert await self.head(store) == replace(before, base=3, floor=3)

    @pytest.mark.parametrize("at", [1, 2, 3])
    async def test_a_new_run_may_begin_with_a_rebase(self, store: Store, at: int) -> None:
        snapshot = entry(at, body=b'"snapshot"', check="rebased", cursor=b'"there"')
        change = HeadChange(base=at, status="paused", owner=None)
        new = commit("run", 1, 2, 3, create=head("run"), rebase=snapshot, change=change)
        await self.write(store, create("other"), new, commit("other", 2))
        left = [snapshot, *map(entry, range(at + 1, 4))]
        assert await store.read_entries("run") == left
        found = await self.head(store)
        assert (found.status, found.owner, found.base) == ("paused", None, at)
        assert (found.seq, found.cursor, found.updated_at) == (3, left[-1].cursor, left[-1].at)
        assert await self.seqs(store, "other") == [1, 2]

    async def test_a_rebase_touches_no_other_run(self, store: Store) -> None:
        await self.write(store, create("other"), commit("other", 2, 3))
        snapshot = await self._five(store)
        before = await self.all_of(store, "other")
        await self.write(store, commit("run", rebase=snapshot))
        assert await self.all_of(store, "other") == before

    async def test_a_log_goes_on_after_a_rebase(self, store: Store) -> None:
        snapshot = await self._five(store)
        await self.write(store, commit("run", 6, rebase=snapshot))
        await self.write(store, commit("run", 7))
        assert await self.seqs(store) == [3, 4, 5, 6, 7]
        assert [one.seq for one in await store.read_entries("run", after=1, limit=2)] == [3, 4]
        assert [one.seq for one in await store.read_entries("run", upto=2)] == []
        (reply,) = await store.commit([commit("run", 7)])
        assert reply.refused is Refusal.GAP

    async def test_a_rebase_can_be_repeated_and_go_further(self, store: Store) -> None:
        snapshot = await self._five(store)
        await self.write(store, commit("run", rebase=snapshot))
        await self.write(store, commit("run", rebase=replace(snapshot, check="again")))
        assert (await store.read_entries("run"))[0].check == "again"
        await self.write(store, commit("run", 6, rebase=entry(6, body=b'"only this"')))
        assert await store.read_entries("run") == [entry(6, body=b'"only this"')]
        found = await self.head(store)
        assert (found.seq, found.cursor, found.updated_at) == (6, entry(6).cursor, entry(6).at)

    async def test_a_rebase_keeps_the_mail_and_the_keys_that_were_used(self, store: Store) -> None:
        snapshot = await self._five(store)
        for key in ("taken", "waiting"):
            await store.post_mail("run", Mail("answer", b'"x"', key))
        taken, waiting = await self.mail(store)
        await self.write(store, commit("run", rebase=snapshot, take=(taken.id,)))
        assert await self.mail(store) == [waiting]
        assert await store.post_mail("run", Mail("answer", b"1", "taken")) is Posted.DUPLICATE
        assert await store.post_mail("run", Mail("answer", b"1", "waiting")) is Posted.DUPLICATE
        assert await store.post_mail("run", Mail("answer", b"1", "new")) is Posted.ACCEPTED
        assert [mail.key for mail in await self.mail(store)] == ["waiting", "new"]
        await self.write(store, commit("run", rebase=entry(4)))
        assert [mail.key for mail in await self.mail(store)] == ["waiting", "new"]
        assert await store.post_mail("run", Mail("answer", b"1", "taken")) is Posted.DUPLICATE

    async def test_ids_of_mail_rise_over_a_rebase(self, store: Store) -> None:
        snapshot = await self._five(store)
        for n in range(3):
            await store.post_mail("run", Mail("send", b"%d" % n))
        first, *taken = await self.mail(store)
        await self.write(store, commit("run", rebase=snapshot, take=tuple(mail.id for mail in taken)))
        for n in (3, 4):
            await store.post_mail("run", Mail("send", b"%d" % n))
            await self.write(store, commit("run", rebase=entry(n)))
        mail = await self.mail(store)
        assert [one.body for one in mail] == [b"0", b"3", b"4"]
        assert [first.id, taken[-1].id, mail[1].id, mail[2].id] == sorted({one.id for one in (*taken[1:], *mail)})

    async def test_a_claim_after_a_rebase_gives_the_log_from_the_snapshot_on(self, store: Store) -> None:
        snapshot = await self._five(store)
        await self.write(store, commit("run", rebase=snapshot, change=HeadChange(base=3, floor=3)))
        claim = await self.claim(store, ALICE)
        assert claim is not None
        assert claim.entries == (snapshot, entry(4), entry(5))
