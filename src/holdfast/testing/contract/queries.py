"""Lists: every filter, exact metadata, order and pages."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast.model import Mail, Query
from holdfast.store.base import Store
from holdfast.testing.build import ALICE, BOB, commit, create
from holdfast.testing.contract.base import ContractBase

SCALARS: list[Any] = [
    *(None, True, False, 0, 1, -1, 0.5, 1.0, 1.5, "", "0", "1", "1.0", "true", "True", "null", "None", "a", "A", "é"),
    *(2**53, 2**53 + 1, -(2**63), 2**63 - 1, 1e300, "x') OR 1=1--", "%", "_", "a%"),
]

ODD = 'of "a" kind, é'

HOSTILE_KEYS = [
    *("x') OR 1=1--", "$where", "$", "$.a", "a.b", '"', "'", "\\", "`", "[0]", "a[0]", "#-1", "*", "?", ":x", "%", "_"),
    *("", " ", "a b", "é", "🪢", "two\nlines", "{tag}", "--", ";", "/*", "0", "null", "__proto__", 'a".b', "\\u0061"),
]


def with_metadata(run: str, metadata: dict[str, Any], **fields: Any) -> Any:
    """A new run with this metadata."""
    return create(run, metadata=msgspec.json.encode(metadata), **fields)


class QueryContract(ContractBase):
    """What `read_heads` and `list_heads` promise."""

    async def ids(self, store: Store, **fields: Any) -> list[str]:
        """The ids that a query lists, in the store's order."""
        return [head.id for head in await store.list_heads(Query(**fields))]

    async def test_heads_come_in_the_order_asked_for(self, store: Store) -> None:
        await self.write(store, create("a"), create("b"))
        found = await store.read_heads(["b", "missing", "a", "b"])
        assert [head and head.id for head in found] == ["b", None, "a", "b"]
        assert await store.read_heads([]) == []

    async def test_many_heads_can_be_read_at_once(self, store: Store) -> None:
        await self.write(store, *(create(f"r{n}") for n in range(0, 300, 2)))
        found = await store.read_heads([f"r{n}" for n in range(300)])
        assert [head and head.id for head in found] == [None if n % 2 else f"r{n}" for n in range(300)]

    async def test_an_empty_store_lists_nothing(self, store: Store) -> None:
        assert await self.ids(store) == []

    async def test_lists_are_sorted_by_creation_then_id_newest_first(self, store: Store) -> None:
        times = {"b": 5.0, "a": 5.0, "c": 5.0, "old": 1.0, "new": 9.5, "B": 5.0, "b-": 5.0}
        await self.write(store, *(create(run, created_at=at) for run, at in times.items()))
        assert await self.ids(store) == ["new", "c", "b-", "b", "a", "B", "old"]

    async def test_listed_heads_are_the_whole_heads(self, store: Store) -> None:
        self.beat(store, ALICE)
        await self.write(store, create("a"), create("b", owner=BOB, waiting_for="w"))
        listed = await store.list_heads(Query())
        assert listed == [await self.head(store, "b"), await self.head(store, "a")]
        assert [head.owned for head in listed] == [False, True]

    @pytest.mark.parametrize("size", [1, 2, 3, 7, 50])
    async def test_pages_show_every_run_once(self, store: Store, size: int) -> None:
        await self.write(store, *(create(f"r{n}", created_at=1000.0 + n // 3) for n in range(10)))
        seen: list[str] = []
        after = None
        while page := await store.list_heads(Query(limit=size, after=after)):
            assert len(page) <= size
            seen += [head.id for head in page]
            after = (page[-1].created_at, page[-1].id)
        assert seen == await self.ids(store)
        assert len(seen) == 10

    async def test_a_page_goes_on_where_a_run_was_deleted(self, store: Store) -> None:
        await self.write(store, *(create(f"r{n}", created_at=1000.0 + n) for n in range(4)))
        assert await store.delete_run("r2")
        assert await self.ids(store, after=(1002.0, "r2")) == ["r1", "r0"]

    async def test_limits_are_kept(self, store: Store) -> None:
        await self.write(store, *(create(f"r{n}") for n in range(5)))
        assert [len(await self.ids(store, limit=limit)) for limit in (0, 1, 4, 5, 10**9)] == [0, 1, 4, 5, 5]

    async def test_a_list_is_not_longer_than_a_hundred_unless_asked(self, store: Store) -> None:
        await self.write(store, *(create(f"r{n:03}") for n in range(105)))
        assert len(await self.ids(store)) == 100

    @pytest.mark.parametrize(
        ("fields", "found"),
        [
            ({"ids": ("a", "c", "missing", "a")}, {"a", "c"}),
            ({"ids": ()}, set()),
            ({"states": (("running", None),)}, {"a", "b"}),
            ({"states": (("running", True),)}, {"a"}),
            ({"states": (("running", False),)}, {"b"}),
            ({"states": (("running", True), ("waiting", None))}, {"a", "c"}),
            ({"states": (("completed", True), ("failed", False))}, {"e"}),
            ({"states": ()}, set()),
            ({"states": (("RUNNING", None), ("run%", None))}, set()),
            ({"flows": ("f",)}, {"a", "b"}),
            ({"flows": ("f", "g")}, {"a", "b", "c"}),
            ({"flows": ("F", "", "x' OR '1'='1")}, set()),
            ({"flows": ()}, set()),
            ({"parent": "a"}, {"b", "c"}),
            ({"parent": "missing"}, set()),
            ({"created_from": 1002.0}, {"c", "d", "e"}),
            ({"created_before": 1002.0}, {"a", "b"}),
            ({"created_from": 1001.0, "created_before": 1003.0}, {"b", "c"}),
            ({"due_by": 49.9}, set()),
            ({"due_by": 50.0}, {"c"}),
            ({"due_by": 60.0}, {"c", "d"}),
            ({"expired_by": 70.0}, {"d"}),
            ({"expired_by": 69.0}, set()),
            ({"has_mail": True}, {"b", "d"}),
            ({"has_mail": False}, {"a", "c", "e"}),
            ({"has_mail": True, "mail_kinds": ("send",)}, {"b", "d"}),
            ({"has_mail": True, "mail_kinds": ("other", ODD)}, {"b"}),
            ({"has_mail": True, "mail_kinds": (ODD,), "ids": ("a", "b", "d")}, {"b"}),
            ({"has_mail": True, "mail_kinds": ("sen", "SEND", "%", "", ODD[:5])}, set()),
            ({"has_mail": True, "mail_kinds": ()}, set()),
            ({"has_mail": False, "mail_kinds": (ODD,)}, {"a", "c", "d", "e"}),
            ({"mail_kinds": (ODD,)}, {"a", "b", "c", "d", "e"}),
            ({"flows": ("f",), "parent": "a", "has_mail": True, "states": (("running", None),)}, {"b"}),
            ({"flows": ("f",), "due_by": 100.0}, set()),
        ],
    )
    async def test_every_given_filter_must_match(self, store: Store, fields: dict[str, Any], found: set[str]) -> None:
        self.beat(store, ALICE)
        await self.write(
            store,
            create("a", flow="f", created_at=1000.0),
            create("b", flow="f", owner=BOB, parent="a", created_at=1001.0),
            create("c", flow="g", status="waiting", owner=None, parent="a", created_at=1002.0, wake_at=50.0),
            create("d", flow="h", status="completed", owner=None, created_at=1003.0, wake_at=60.0, expires_at=70.0),
            create("e", flow="h", status="failed", owner=None, created_at=1004.0),
        )
        for run in ("b", "d"):
            await store.post_mail(run, Mail("send"))
        await store.post_mail("b", Mail(ODD, key="k"))
        assert set(await self.ids(store, **fields)) == found

    async def test_mail_that_was_taken_is_of_no_kind_any_more(self, store: Store) -> None:
        self.beat(store, ALICE)
        await self.write(store, create("a", owner=ALICE))
        await store.post_mail("a", Mail("send", key="k"))
        await store.post_mail("a", Mail(ODD))
        first, _ = await self.mail(store, "a")
        await self.write(store, commit("a", take=(first.id,)))
        assert await self.ids(store, has_mail=True, mail_kinds=("send",)) == []
        assert await self.ids(store, has_mail=True, mail_kinds=(ODD,)) == ["a"]

    async def test_metadata_matches_the_exact_scalar_only(self, store: Store) -> None:
        await self.write(store, *(with_metadata(f"r{n}", {"k": value}) for n, value in enumerate(SCALARS)))
        found = [await self.ids(store, metadata=(("k", value),)) for value in SCALARS]
        assert dict(zip(map(repr, SCALARS), found, strict=True)) == {repr(v): [f"r{n}"] for n, v in enumerate(SCALARS)}

    async def test_metadata_lists_and_objects_match_no_scalar(self, store: Store) -> None:
        await self.write(store, with_metadata("run", {"list": [1], "object": {"a": 1}, "empty": []}))
        for key in ("list", "object", "empty"):
            for value in (1, "[1]", '{"a":1}', None, "", "[]"):
                assert await self.ids(store, metadata=((key, value),)) == []

    async def test_a_missing_key_is_not_a_null(self, store: Store) -> None:
        await self.write(store, with_metadata("null", {"k": None}), with_metadata("missing", {"other": None}))
        assert await self.ids(store, metadata=(("k", None),)) == ["null"]

    async def test_every_given_metadata_must_match(self, store: Store) -> None:
        await self.write(store, with_metadata("one", {"a": 1}), with_metadata("both", {"a": 1, "b": "x"}))
        assert await self.ids(store, metadata=(("a", 1), ("b", "x"))) == ["both"]
        assert await self.ids(store, metadata=(("a", 1), ("b", "y"))) == []
        assert await self.ids(store, metadata=(("a", 1), ("a", 2))) == []
        assert await self.ids(store, metadata=(("a", 1),), flows=("other",)) == []

    @pytest.mark.parametrize("damaged", [b'{"k":', b'{"', b"", b'["k"]', b"1"])
    async def test_a_run_whose_metadata_cannot_be_read_is_listed_for_whoever_looks_at_it_is_told(
        self, store: Store, damaged: bytes
    ) -> None:
        await self.write(store, with_metadata("a", {"k": 1}), create("b", metadata=damaged), with_metadata("c", {}))
        assert await self.ids(store, metadata=(("k", 1),)) == ["b", "a"]

    async def test_hostile_metadata_keys_are_only_keys(self, store: Store) -> None:
        await self.write(store, with_metadata("decoy", {"a": {"b": 1, "": 1}, "x": 1, "where": 1, "list": [1]}))
        for n, key in enumerate(HOSTILE_KEYS):
            assert await self.ids(store, metadata=((key, 1),)) == [], key
            await self.write(store, with_metadata(f"r{n}", {key: 1}))
        found = [await self.ids(store, metadata=((key, 1),)) for key in HOSTILE_KEYS]
        assert dict(zip(HOSTILE_KEYS, found, strict=True)) == {key: [f"r{n}"] for n, key in enumerate(HOSTILE_KEYS)}
        assert await self.ids(store, metadata=(("a.b", 2),)) == []

    async def test_metadata_comes_back_byte_for_byte(self, store: Store) -> None:
        text = b'{ "b":1.0, "a":"\\u00e9", "n":1e2, "deep":{"x":[null,true]} }'
        await self.write(store, create("run", metadata=text))
        assert (await self.head(store)).metadata == text
        assert await self.ids(store, metadata=(("a", "é"), ("n", 100.0))) == ["run"]
