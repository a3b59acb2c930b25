"""Lists with filters and pages, and what ids, names, references and metadata may be."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast import Pipeline, Runtime, step
from holdfast.errors import InvalidFilterError, InvalidIdError, RunFailedError, StoreDamagedError, UsageError
from holdfast.model import Commit
from holdfast.store.base import Store
from holdfast.store.memory import MemoryStore
from holdfast.testing import ManualClock
from holdfast.testing.build import ALICE
from watched import WatchedStore

MakeRuntime = Callable[..., Runtime]
MakeStore = Callable[[], Store]

ONE = Pipeline("one", [lambda state: state])
TWO = Pipeline("two", [lambda state: state])


def fail(state: Any) -> None:
    raise LookupError("broken")


async def fill(rt: Runtime, clock: ManualClock) -> None:
    for number in range(6):
        clock.advance(1)
        metadata = {"n": number, "even": number % 2 == 0, "text": f"t{number}", "none": None}
        await rt.run(
            ONE if number < 4 else TWO, {}, id=f"r{number}", metadata=metadata, parent="p1" if number else None
        )
    clock.advance(1)
    with pytest.raises(RunFailedError):
        await rt.run(Pipeline("bad", [fail]), {}, id="bad", metadata={"n": "0"})


async def ids(rt: Runtime, **filters: Any) -> list[str]:
    return [run.id async for run in rt.list(**filters)]


async def test_a_list_is_newest_first_and_all_filters_must_match(make_runtime: MakeRuntime, clock: ManualClock) -> None:
    start = datetime.fromtimestamp(clock.now(), UTC)
    async with make_runtime() as rt:
        await fill(rt, clock)
        assert await ids(rt) == ["bad", "r5", "r4", "r3", "r2", "r1", "r0"]
        assert await ids(rt, status="failed") == ["bad"]
        assert await ids(rt, status=["completed", "failed"], flow="two") == ["r5", "r4"]
        assert await ids(rt, flow=["two", "bad"]) == ["bad", "r5", "r4"]
        assert await ids(rt, status="running") == []
        assert await ids(rt, metadata={"even": True}) == ["r4", "r2", "r0"]
        assert await ids(rt, metadata={"even": True, "n": 2}) == ["r2"]
        assert await ids(rt, metadata={"n": "0"}) == ["bad"]
        assert await ids(rt, metadata={"n": True}) == []
        assert await ids(rt, metadata={"none": None}, limit=2) == ["r5", "r4"]
        assert await ids(rt, parent="p1") == ["r5", "r4", "r3", "r2", "r1"]
        after, before = start + timedelta(seconds=2), start + timedelta(seconds=4)
        assert await ids(rt, created_after=after, created_before=before) == ["r2", "r1"]


async def test_a_list_can_be_read_page_by_page(make_runtime: MakeRuntime, clock: ManualClock) -> None:
    async with make_runtime() as rt:
        clock.advance(0.123456789)  # finer than a datetime
        for number in range(7):
            await rt.run(ONE, {}, id=f"r{number}")
            if number % 2:
                clock.advance(0.0000004)
        everything = await ids(rt)
        pages: list[str] = []
        cursor = None
        while page := [run async for run in rt.list(limit=3, after=cursor)]:
            pages += [run.id for run in page]
            cursor = rt.page(page[-1])
        assert pages == everything
        assert len(everything) == 7
        assert await ids(rt, limit=0) == []
        assert await ids(rt, limit=10**9) == everything


async def test_a_list_longer_than_a_page_is_given_whole(make_runtime: MakeRuntime) -> None:
    async with make_runtime() as rt:
        await rt.run(ONE, {}, id="source")
        for number in range(130):
            await rt.start(ONE, {}, id=f"r{number}")
        assert len(await ids(rt)) == 131


HOSTILE = ["x') OR 1=1--", "$where", "a.b", "a[0]", '"', "'", "\\", "", "*", "%", "_", "\u202e", "a\0b"]


@pytest.mark.parametrize("key", HOSTILE, ids=ascii)
async def test_hostile_metadata_keys_are_only_keys(make_runtime: MakeRuntime, key: str) -> None:
    async with make_runtime() as rt:
        await rt.run(ONE, {}, id="plain", metadata={"x": 1})
        await rt.run(ONE, {}, id="hostile", metadata={key: key})
        assert await ids(rt, metadata={key: key}) == ["hostile"]
        assert await ids(rt, metadata={key: "other"}) == []
        assert await ids(rt, flow=key) == []
        run = await rt.get("hostile")
    assert run is not None
    assert run.metadata == {key: key}


@pytest.mark.parametrize(
    "filters",
    [
        {"limit": -1},
        {"limit": 10**9 + 1},
        {"limit": True},
        {"limit": "5"},
        {"limit": 1.5},
        {"status": "done"},
        {"status": ["completed", 3]},
        {"status": 7},
        {"flow": 7},
        {"flow": ["a", "\ud800"]},
        {"metadata": {"x": "\ud800"}},
        {"metadata": {"\ud800": 1}},
        {"metadata": ["x"]},
        {"metadata": {"x": [1]}},
        {"metadata": {"x": {}}},
        {"metadata": {1: "x"}},
        {"metadata": {"x": 2**64}},
        {"created_after": "2024-01-01"},
        {"created_before": datetime(2024, 1, 1)},
        {"after": "forged"},
        {"after": "nan:r1"},
        {"after": "inf:r1"},
        {"after": "1e999:r1"},
        {"after": "1.0:../x"},
        {"after": "1.0"},
        {"after": 17},
    ],
    ids=ascii,
)
async def test_filters_that_cannot_be_are_refused_before_any_reading(
    make_runtime: MakeRuntime, make_store: MakeStore, filters: dict[str, Any]
) -> None:
    store = WatchedStore(make_store())
    async with make_runtime(store) as rt:
        await rt.get("r1")  # the cleanup at the beginning is over
        store.touched = False
        with pytest.raises(InvalidFilterError):
            await ids(rt, **filters)
        assert not store.touched


async def test_an_unknown_filter_is_refused(make_runtime: MakeRuntime) -> None:
    async with make_runtime() as rt:
        with pytest.raises(TypeError):
            await ids(rt, colour="red")


# Ids

BAD_IDS = [
    "../../etc/passwd",
    "/etc/x",
    "a/../b",
    "%2e%2e%2f",
    "a\0.json",
    "",
    " ",
    ".",
    "..",
    "-rf",
    "--db=/x",
    "x" * 129,
    "x" * 300,
    "x" * 1_000_000,
    "a\u202eb",
    "\ud800",
    "'; DROP TABLE runs;--",
    "*",
    "{tag}x",
    "a:b:c",
    "a\r\nDEL x",
    "r1\n",
    "<img src=x onerror=alert(1)>",
    "{{7*7}}",
    "\x1b]52;",
    "ä",
    "\uff11",
    True,
    0,
    b"r1",
    ["r1"],
]


def verbs(rt: Runtime, id: Any) -> list[Any]:
    async def drain(items: Any) -> None:
        async for _ in items:
            pass

    return [
        rt.run(ONE, {}, id=id),
        rt.start(ONE, {}, id=id),
        rt.start(ONE, {}, id="fine", parent=id),
        rt.resume(id),
        rt.rewind(id),
        rt.fork(id),
        rt.fork("source@1", id=id),
        rt.pause(id),
        rt.cancel(id),
        rt.get(id),
        rt.load(id),
        rt.delete(id),
        rt.result(id),
        drain(rt.checkpoints(id)),
        drain(rt.events(id)),
        drain(rt.list(parent=id)),
    ]


@pytest.mark.parametrize("id", BAD_IDS, ids=lambda id: ascii(id)[:30])
async def test_an_id_outside_the_allowed_form_is_refused_before_any_io(id: Any) -> None:
    store = WatchedStore(MemoryStore())
    async with Runtime(store) as rt:
        await rt.run(ONE, {}, id="source")
        before = store.commits
        for verb in verbs(rt, id):
            store.touched = False
            with pytest.raises(InvalidIdError, match="Allowed") as caught:
                await verb
            assert len(str(caught.value)) < 400
            assert str(caught.value).isascii()
            assert store.commits == before
        assert await ids(rt) == ["source"]


@pytest.mark.parametrize("ref", ["r1@", "r1@0", "r1@-1", "r1@x", "r1@1@2", "@1", "r1@01", "r1@1.0", f"r1@{10**30}"])
async def test_a_reference_outside_the_allowed_form_is_refused(make_runtime: MakeRuntime, ref: str) -> None:
    async with make_runtime() as rt:
        for verb in (rt.load, rt.rewind, rt.fork, rt.resume):
            with pytest.raises(InvalidIdError):
                await verb(ref)


@pytest.mark.parametrize("id", ["r", "0", "NUL.txt", "a.b-c_d", "x" * 128, "CON", "r1.json", "a..b"])
async def test_every_id_of_the_allowed_form_works(make_runtime: MakeRuntime, id: str) -> None:
    async with make_runtime() as rt:
        assert await rt.run(ONE, {"n": 1}, id=id) == {"n": 1}
        assert await ids(rt) == [id]


async def test_ids_that_differ_in_case_are_two_runs(make_runtime: MakeRuntime) -> None:
    async with make_runtime() as rt:
        assert await rt.run(ONE, "upper", id="Run1") == "upper"
        assert await rt.run(ONE, "lower", id="run1") == "lower"
        assert sorted(await ids(rt)) == ["Run1", "run1"]


async def test_runs_without_an_id_get_one_each(make_runtime: MakeRuntime) -> None:
    flow = Pipeline("../Größe: <b>'s\n", [lambda state: state])
    async with make_runtime() as rt:
        handles = [await rt.start(flow, {}) for _ in range(3)]
        assert len({handle.id for handle in handles}) == 3
        for handle in handles:
            assert await handle.result() == {}


# Names

NAMES = [
    "../../etc/passwd",
    "'; DROP TABLE runs;--",
    "a\u202eb",
    "<img src=x onerror=alert(1)>",
    "\x1b]52;",
    "a\r\nb",
    " ",
    "ä" * 200,
    "{{7*7}}",
]


@pytest.mark.parametrize("name", NAMES, ids=lambda name: ascii(name)[:30])
async def test_names_go_round_verbatim(make_runtime: MakeRuntime, name: str) -> None:
    flow = Pipeline(name, [step(name=name)(lambda state: state), step(name="bad")(fail)])
    async with make_runtime() as rt:
        with pytest.raises(RunFailedError):
            await rt.run(flow, {}, id="r1")
    async with make_runtime() as rt:
        run = await rt.get("r1")
        assert run is not None
        assert (run.flow, run.step_names) == (name, (name, "bad"))
        assert await ids(rt, flow=name) == ["r1"]
        steps = [event.step async for event in rt.events("r1") if event.type == "step_completed"]
        assert steps == [name]


@pytest.mark.parametrize(
    "name", ["", "x" * 201, 7, None, True, b"x", "\ud800", "a\0b"], ids=lambda name: ascii(name)[:20]
)
def test_a_name_that_cannot_be_is_refused_when_declared(name: Any) -> None:
    with pytest.raises(UsageError):
        Pipeline(name, [lambda state: state])


@pytest.mark.parametrize("name", ["\ud800", "a\0b", "x" * 201, 7], ids=lambda name: ascii(name)[:20])
def test_a_step_name_that_cannot_be_is_refused_when_declared(name: Any) -> None:
    with pytest.raises(UsageError):
        Pipeline("flow", [step(name=name)(lambda state: state)])


# Metadata


async def test_metadata_goes_round_exactly(make_runtime: MakeRuntime) -> None:
    metadata = {"n": 1, "f": 1.5, "t": "ä\u202e", "b": True, "none": None, "list": [1, {"x": []}], "big": 2**63 - 1}
    async with make_runtime() as rt:
        await rt.run(ONE, {}, id="r1", metadata=metadata)
        run = await rt.get("r1")
    assert run is not None
    assert run.metadata == metadata
    assert [type(value) for value in run.metadata.values()] == [type(value) for value in metadata.values()]


@pytest.mark.parametrize(
    "metadata",
    [
        {"x": object()},
        {"x": {1, 2}},
        {1: "x"},
        ["x"],
        "x",
        {"x": float("nan")},
        {"x": "\ud800"},
        {"x": 2**64},
        {"x": (1,)},
    ],
)
async def test_metadata_that_json_cannot_hold_is_refused(make_runtime: MakeRuntime, metadata: Any) -> None:
    async with make_runtime() as rt:
        with pytest.raises(UsageError, match="metadata"):
            await rt.run(ONE, {}, id="r1", metadata=metadata)
        assert await rt.get("r1") is None


@pytest.mark.parametrize("damaged", [b'{"n":', b"[]"])
async def test_a_run_whose_metadata_cannot_be_read_is_told_of_behind_those_that_match(
    make_runtime: MakeRuntime, make_store: MakeStore, clock: ManualClock, damaged: bytes
) -> None:
    store = make_store()
    async with make_runtime(store) as rt:
        await fill(rt, clock)
        (head,) = await store.read_heads(["r3"])
        assert head is not None
        entries = tuple(await store.read_entries("r3"))
        harmed = replace(head, id="harmed", metadata=damaged, owner=ALICE)
        await store.commit([Commit(run="harmed", owner=ALICE, fence=head.fence, create=harmed, entries=entries)])
        seen: list[str] = []

        async def look() -> None:
            async for run in rt.list(metadata={"even": False}):
                seen.append(run.id)

        with pytest.raises(StoreDamagedError, match="its head cannot be read") as caught:
            await look()
        assert caught.value.run_id == "harmed"
        assert seen == ["r5", "r3", "r1"]
