"""How a new run comes into the store: by one commit, and with its owner the first time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import attrs
import pydantic
import pytest

from holdfast import Graph, Pipeline, Runtime, Team, flow, step
from holdfast.engine.postman import QUIET
from holdfast.errors import InputChangedError, RunExistsError, StoreUnavailableError, UsageError
from holdfast.model import Commit, Entry, Head, Reply
from holdfast.store.base import Store
from holdfast.store.memory import MemoryStore
from holdfast.store.sqlite import writing

MakeRuntime = Callable[..., Runtime]
MakeStore = Callable[[], Store]


class Counting(MemoryStore):
    """Counts what a run costs."""

    reads = commits = 0
    full = False

    async def read_heads(self, ids: Sequence[str]) -> list[Head | None]:
        self.reads += 1
        return await super().read_heads(ids)

    def try_commit(self, batch: Sequence[Commit], *how: Any) -> list[Reply] | None:
        if self.full:
            raise StoreUnavailableError("the disk is full")
        self.commits += 1
        return super().try_commit(batch, *how)


@step
async def double(state: dict[str, int]) -> dict[str, int]:
    return {"n": state["n"] * 2}


DOUBLE = Pipeline("double", [double], state=dict[str, int])


async def test_a_new_run_by_its_id_is_not_looked_for_first() -> None:
    store = Counting()
    async with Runtime(store) as rt:
        await rt.run(DOUBLE, {"n": 1}, id="first")
        store.reads = store.commits = 0
        assert await rt.run(DOUBLE, {"n": 2}, id="second") == {"n": 4}
        assert (store.reads, store.commits) == (0, 2)  # its creation; its step with its end


async def test_the_first_run_of_all_is_not_looked_for_either_where_it_brings_its_owner_with_it() -> None:
    store = Counting()
    async with Runtime(store) as rt:
        runs = [rt.run(DOUBLE, {"n": n}, id=f"run-{n}") for n in range(20)]
        assert await asyncio.gather(*runs) == [{"n": 2 * n} for n in range(20)]
        assert store.reads == 0


async def test_where_that_cannot_be_the_first_of_many_runs_is_looked_for_alone() -> None:
    class Waiting(Counting):
        def try_commit(self, batch: Sequence[Commit], *how: Any) -> list[Reply] | None:
            return None if how else super().try_commit(batch)

    store = Waiting()
    async with Runtime(store) as rt:
        runs = [rt.run(DOUBLE, {"n": n}, id=f"run-{n}") for n in range(20)]
        assert await asyncio.gather(*runs) == [{"n": 2 * n} for n in range(20)]
        assert store.reads == 1


async def test_a_first_run_that_is_there_though_its_commit_failed_goes_on_as_the_one_that_was_asked_for() -> None:
    class Unsure(Counting):
        def try_commit(self, batch: Sequence[Commit], *how: Any) -> list[Reply] | None:
            replies = super().try_commit(batch, *how)
            if how:
                raise StoreUnavailableError("the flush failed, and was done all the same")
            return replies

    async with Runtime(Unsure()) as rt:
        starts = [rt.start(DOUBLE, {"n": n}, id=f"run-{n % 3}") for n in range(4)]
        *handles, refused = await asyncio.gather(*starts, return_exceptions=True)
        assert [await handle.result() for handle in handles] == [{"n": 0}, {"n": 2}, {"n": 4}]
        assert isinstance(refused, RunExistsError)


@pytest.mark.parametrize("brings_it", [True, False])
async def test_an_owner_is_alive_in_the_store_as_soon_as_its_first_run_is_there(brings_it: bool) -> None:
    class Watching(MemoryStore):
        def try_commit(self, batch: Sequence[Commit], *how: Any) -> list[Reply] | None:
            if how and not brings_it:
                return None
            replies = super().try_commit(batch, *how)
            owned.extend(self._seen(self._runs[commit.run].head).owned for commit in batch if commit.create)
            return replies

    owned = list[bool]()
    async with Runtime(Watching()) as rt:
        await rt.run(DOUBLE, {"n": 1}, id="first")
    assert owned == [True]


async def test_a_runtime_that_only_gives_results_leaves_no_trace_in_the_store(make_store: MakeStore) -> None:
    store = make_store()
    async with Runtime(store) as rt:
        await rt.run(DOUBLE, {"n": 1}, id="done")
    store = make_store()
    async with Runtime(store) as rt:
        for _ in range(3):
            assert await rt.run(DOUBLE, {"n": 1}, id="done") == {"n": 2}
        with pytest.raises(RunExistsError):
            await rt.start(DOUBLE, {"n": 1}, id="done")
        assert await store.list_owners() == []


async def test_the_first_runs_of_an_owner_are_told_apart_from_those_that_are_there(make_runtime: MakeRuntime) -> None:
    async with make_runtime() as rt:
        await asyncio.gather(*(rt.run(DOUBLE, {"n": n}, id=f"run-{n}") for n in (1, 3)))
    async with make_runtime() as rt:
        runs = [rt.run(DOUBLE, {"n": n}, id=f"run-{n}") for n in range(5)]
        assert await asyncio.gather(*runs) == [{"n": 2 * n} for n in range(5)]
        assert [len([c async for c in rt.checkpoints(f"run-{n}")]) for n in range(5)] == [2] * 5


async def test_running_a_finished_run_again_commits_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commits: list[str] = []
    monkeypatch.setattr(writing, "fault", commits.append)
    async with Runtime(f"sqlite:{tmp_path}/runs.db") as rt:
        await rt.run(DOUBLE, {"n": 1}, id="done")
        commits.clear()
        for _ in range(3):
            assert await rt.run(DOUBLE, {"n": 1}, id="done") == {"n": 2}
        assert commits == []


async def test_a_finished_run_gives_its_result_when_the_store_cannot_be_written() -> None:
    store = Counting()
    async with Runtime(store) as rt:
        await rt.run(DOUBLE, {"n": 1}, id="done")
        store.full = True
        assert await rt.run(DOUBLE, {"n": 1}, id="done") == {"n": 2}
        with pytest.raises(StoreUnavailableError, match="full"):
            await rt.run(DOUBLE, {"n": 1}, id="new")
        store.full = False


@pytest.mark.parametrize("unfit", [{"n": "many"}, "nothing", None, 7])
async def test_an_input_that_no_run_could_begin_with_is_another_input_for_one_that_is_there(
    make_runtime: MakeRuntime, unfit: Any
) -> None:
    async with make_runtime() as rt:
        await rt.run(DOUBLE, {"n": 1}, id="done")
        with pytest.raises(InputChangedError):
            await rt.run(DOUBLE, unfit, id="done")


@dataclass
class Tally:
    n: int
    seen: list[int] = field(default_factory=list)


def count(tally: Tally) -> Tally:
    tally.seen.append(tally.n)
    return tally


@flow
async def counting(tally: Tally) -> Tally:
    return count(tally)


def graph() -> Graph[Tally]:
    made = Graph("graph", state=Tally)
    made.node(count, start=True)
    return made


TAKING = {
    "pipeline": Pipeline("pipeline", [count], state=Tally),
    "graph": graph(),
    "team": Team("team", [count]),
    "function": counting,
}


@pytest.mark.parametrize("first", [{"n": 1}, {"seen": [], "n": 1}, Tally(1)], ids=repr)
@pytest.mark.parametrize("shape", TAKING)
async def test_a_dict_of_the_fields_is_the_same_input_as_the_state_that_is_made_of_it(
    make_runtime: MakeRuntime, shape: str, first: Any
) -> None:
    made = TAKING[shape]
    async with make_runtime() as rt:
        rt.register(Tally)
        assert await rt.run(made, first, id="r1") == Tally(1, [1])
        for same in ({"n": 1, "seen": []}, Tally(1)):
            assert await rt.run(made, same, id="r1") == Tally(1, [1])
        for other in ({"n": 2}, Tally(1, [0])):
            with pytest.raises(InputChangedError):
                await rt.run(made, other, id="r1")


@pytest.mark.parametrize("shape", ["pipeline", "graph", "function"])
async def test_a_fork_takes_a_dict_of_the_fields_for_the_state(make_runtime: MakeRuntime, shape: str) -> None:
    made = TAKING[shape]
    async with make_runtime() as rt:
        await rt.run(made, Tally(1), id="r1")
        assert await (await rt.fork("r1@1", id="r2", state={"n": 5})).result() == Tally(5, [5])
        assert await rt.run(made, Tally(5), id="r2") == Tally(5, [5])
        with pytest.raises(UsageError, match="does not fit the declared state Tally"):
            await rt.fork("r1@1", id="r3", state={"n": "many"})
        assert await rt.get("r3") is None


async def test_a_fork_takes_a_state_of_the_type_that_a_step_has_made(make_runtime: MakeRuntime) -> None:
    made = Pipeline("said", [count, lambda tally: f"{tally.n}", str.upper], state=Tally)
    async with make_runtime() as rt:
        await rt.run(made, Tally(1), id="r1")
        assert await (await rt.fork("r1@3", state="many")).result() == "MANY"


@dataclass
class Bill:
    amount: float
    due: datetime | None = None
    parts: list[Tally] = field(default_factory=list)


@attrs.define
class Owed:
    amount: float = 0.0


@pytest.mark.parametrize("declared", [Bill, Owed])
async def test_a_field_that_the_state_does_not_have_is_refused_and_not_left_out(
    make_runtime: MakeRuntime, declared: type
) -> None:
    async with make_runtime() as rt:
        with pytest.raises(UsageError, match="it has no field 'amuont', only "):
            await rt.run(Pipeline("owed", [lambda state: state], state=declared), {"amuont": 5.0}, id="r1")
        assert await rt.get("r1") is None


class StrictBill(pydantic.BaseModel):
    amount: float = pydantic.Field(gt=0)


class Own:
    """What only the program knows how to make."""


@dataclass
class OwnBill:
    amount: float
    own: Own | None = None


@pytest.mark.parametrize(
    ("bill", "fields", "wrong"),
    [
        (Bill(1.0, datetime(2026, 1, 2, tzinfo=UTC), [Tally(1)]), {"amount": 2.0}, {"amount": "2"}),
        (Bill(1.0), {"parts": []}, {"parts": [5]}),
        (StrictBill(amount=1.0), {"amount": 2.0}, {"amount": -1.0}),
        (OwnBill(1.0), {"amount": 2.0}, None),
    ],
)
async def test_a_state_that_was_written_down_by_hand_has_fields_of_their_types(
    make_runtime: MakeRuntime, bill: Any, fields: dict[str, Any], wrong: dict[str, Any] | None
) -> None:
    made = Pipeline("paid", [lambda bill: bill, lambda bill: bill], state=type(bill))
    async with make_runtime() as rt:
        rt.register(Tally)
        await rt.run(made, bill, id="r1")
        checkpoint = await rt.load("r1@2", raw=True)
        assert checkpoint is not None
        typed: Any = checkpoint.state

        def with_fields(changed: dict[str, Any]) -> dict[str, Any]:
            return {**typed, "v": {**typed["v"], **changed}}

        forked = await rt.fork("r1@2", state=with_fields(fields), raw=True)
        assert vars(await forked.result()) == {**vars(bill), **fields}
        if wrong is not None:
            with pytest.raises(UsageError, match="does not fit"):
                await rt.fork("r1@2", id="r2", state=with_fields(wrong), raw=True)
            assert await rt.get("r2") is None


async def test_a_handle_of_a_run_that_has_ended_here_gives_its_result_without_reading_its_log() -> None:
    class Watching(MemoryStore):
        async def read_entries(self, run: str, **window: Any) -> list[Entry]:
            read.append(run)
            return await super().read_entries(run, **window)

    read: list[str] = []
    async with Runtime(Watching()) as rt:
        handle = await rt.start(DOUBLE, {"n": 1}, id="r1")
        first = await handle.result()
        first["n"] = 77
        assert (await handle.result(), read) == ({"n": 2}, [])  # a value of its own each time
        await (await rt.rewind("r1@1")).result()
        read.clear()
        assert (await handle.result(), read) == ({"n": 2}, ["r1"])  # it has gone on since: the log tells


async def test_the_mail_of_a_run_that_was_just_made_is_not_asked_for() -> None:
    entered, leaving = asyncio.Event(), asyncio.Event()

    @step
    async def waits(state: dict[str, int]) -> None:
        entered.set()
        await leaving.wait()

    async with Runtime(MemoryStore()) as rt:
        before = asyncio.get_running_loop().time()
        handle = await rt.start(Pipeline("waits", [waits], state=dict[str, int]), {"n": 1}, id="run")
        await entered.wait()
        quiet = before - QUIET
        assert rt._now().engine.live["run"].runner.writer.heard_at > quiet  # whoever brings it goes by that
        leaving.set()
        await handle.result()
