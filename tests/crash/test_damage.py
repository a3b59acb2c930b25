"""Damage inside a sound store: found by checksum and order, named, never built on; other runs go on."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import apsw
import pytest

from holdfast import CheckpointPolicy, Pipeline, Runtime, ask, call, flow, receive
from holdfast.errors import RunFailedError, RunInterruptedError, RunWaitingError, StoreDamagedError
from holdfast.model import Claim, Mail, Query
from holdfast.store.base import Store
from holdfast.store.sqlite import SqliteStore
from holdfast.testing import ManualClock
from waiting import until_status
from watched import WatchedStore

from . import steps

STEPS, STOPS_AT, SEED = 8, 6, 5
Tamper = Callable[[apsw.Connection, int], Any]


async def leave_unfinished(file: Path, *runs: str) -> None:
    """Runs that were handed back after STOPS_AT steps."""
    for run in runs:
        async with Runtime(f"sqlite:{file}", grace=0.0) as rt:
            closing: list[asyncio.Task[None]] = []

            async def advance(
                index: int, state: dict[str, Any], rt: Runtime = rt, closing: list[asyncio.Task[None]] = closing
            ) -> None:
                if index == STOPS_AT:
                    await cut_off_by_closing(rt, closing)
                steps.change(state, index)

            with pytest.raises(RunInterruptedError):
                await rt.run(Pipeline("flow", advance, total=STEPS), steps.first_state(SEED), id=run)
            await closing[0]


@flow
async def asking(state: Any) -> Any:
    """Waits for somebody to say something."""
    return await ask("go?")


FLIP_QUESTION = "update entries set body = replace(body, 'go?', 'GO?')"


async def leave_waiting(folder: Path, **settings: Any) -> Path:
    """The file of a store in which the run r1 waits for an answer."""
    file = folder / "runs.db"
    async with Runtime(f"sqlite:{file}", **settings) as rt:
        with pytest.raises(RunWaitingError):
            await rt.run(asking, {}, id="r1", until="settled")
    return file


def tamper(file: Path, change: str) -> None:
    """Change the store as no program of ours would."""
    db = apsw.Connection(str(file))
    db.set_busy_timeout(10_000)
    db.execute(change)
    db.close()


async def cut_off_by_closing(rt: Runtime, closing: list[asyncio.Task[None]]) -> None:
    """For a step to end in. Closing is a task of its own: it waits for the step, which must not wait for it."""
    closing.append(asyncio.create_task(rt.close()))
    await asyncio.Event().wait()


def flip_body(db: apsw.Connection, row: int) -> None:
    """One letter of a state."""
    db.execute("update entries set body = replace(body, 'step-0', 'step-O') where id = ?", (row,))


def flip_cursor(db: apsw.Connection, row: int) -> None:
    """The position, made one step further."""
    db.execute("""update entries set cursor = json_set(cursor, '$.step', 9) where id = ?""", (row,))


def swap(db: apsw.Connection, row: int) -> None:
    """Two checkpoints in each other's place."""
    db.execute("update entries set id = -id where id in (?1, ?1 - 1)", (row,))
    db.execute("update entries set id = -id - 1 where id = -?1", (row,))
    db.execute("update entries set id = -id + 1 where id = -(?1 - 1)", (row,))


def remove(db: apsw.Connection, row: int) -> None:
    """One checkpoint gone from the middle."""
    db.execute("delete from entries where id = ?", (row,))


def paste(db: apsw.Connection, row: int) -> None:
    """The checkpoint of another run at the same place."""
    for column in ("kind", "fence", "at", "cursor", '"check"', "body"):
        db.execute(
            f"update entries set {column} = (select {column} from entries where id = ?) where id = ?",
            (row + (1 << 32), row),
        )


def reseal_with_older_fence(db: apsw.Connection, row: int) -> None:
    """What a superseded owner would have left, its checksum right."""
    from holdfast.core.checksum import seal

    names = "id & 4294967295, kind, at, cursor, body"
    seq, kind, at, cursor, body = db.execute(f"select {names} from entries where id = ?", (row,)).fetchone()
    sealed = seal("damaged", seq, kind, 0, at, cursor.encode(), body.encode())
    db.execute('update entries set fence = 0, "check" = ? where id = ?', (sealed.check, row))


@pytest.mark.parametrize("tamper", [flip_body, flip_cursor, swap, remove, paste, reseal_with_older_fence])
async def test_a_damaged_checkpoint_is_named_and_never_built_on(tmp_path: Path, tamper: Tamper) -> None:
    file = tmp_path / "runs.db"
    await leave_unfinished(file, "damaged", "sound")
    db = apsw.Connection(str(file))
    tamper(db, 1 << 32 | 4)
    db.close()
    began: list[int] = []

    async def advance(index: int, state: dict[str, Any]) -> None:
        began.append(index)
        steps.change(state, index)

    flow = Pipeline("flow", advance, total=STEPS)
    async with Runtime(f"sqlite:{file}") as rt:
        with pytest.raises(StoreDamagedError) as raised:
            await rt.run(flow, steps.first_state(SEED), id="damaged")
        assert (raised.value.run_id, raised.value.seq) in {("damaged", 3), ("damaged", 4)}
        assert began == []
        assert repr(await rt.run(flow, steps.first_state(SEED), id="sound")) == steps.expected(SEED, STEPS)
        assert began == [STOPS_AT, STOPS_AT + 1]


async def test_damage_before_an_anchor_of_a_log_in_files_is_named_and_never_built_on(tmp_path: Path) -> None:
    began: list[int] = []

    async def leave(run: str, stops_at: int | None) -> None:
        closing: list[asyncio.Task[None]] = []
        async with Runtime(f"file:{tmp_path}/runs", grace=0.0) as rt:

            async def advance(index: int, state: dict[str, Any]) -> None:
                began.append(index)
                if index == stops_at:
                    await cut_off_by_closing(rt, closing)
                state[f"step-{index}"] = "x" * 5000

            try:
                await rt.run(Pipeline("flow", advance, total=60), {"text": "y" * 200_000}, id=run)
            finally:
                await asyncio.gather(*closing)

    for run in ("damaged", "sound"):
        with pytest.raises(RunInterruptedError):
            await leave(run, 50)
    log = tmp_path / "runs" / "damaged" / "log.jsonl"
    whole = log.read_bytes()
    place = whole.index(b'"step-20"')
    assert b'","anchor":{"after":"' in whole[place + 10_000 :]  # so the head can be read
    log.write_bytes(whole.replace(b'"step-20"', b'"step-2O"'))
    began.clear()
    with pytest.raises(StoreDamagedError) as raised:
        await leave("damaged", None)
    assert (raised.value.run_id, raised.value.seq) == ("damaged", 22)
    assert began == []
    await leave("sound", None)
    assert began == list(range(50, 60))
    async with Runtime(f"file:{tmp_path}/runs") as rt:
        assert {run.id: run.status async for run in rt.list()} == {"damaged": "interrupted", "sound": "completed"}
        # By the store's own check, or by reading the run, or by both.
        found = {(problem.run, problem.seq == 22 or "seq 22" in problem.problem) async for problem in rt.doctor()}
        assert found == {("damaged", True)}


NOT_TEXT, BYTES = "cast(cast({0} as blob) || x'ff' as text)", "cast({0} as blob)"


@pytest.mark.parametrize("how", [NOT_TEXT, BYTES], ids=["not-text", "bytes"])
@pytest.mark.parametrize(
    "place", ["entries.body", "entries.cursor", "entries.kind", "runs.metadata", "runs.flow", "runs.info"]
)
async def test_bytes_that_are_no_text_in_one_run_stop_no_other(tmp_path: Path, place: str, how: str) -> None:
    file = tmp_path / "runs.db"
    await leave_unfinished(file, "damaged", "sound")
    table, column = place.split(".")
    which = "id = (select max(id) from entries where id < 2 << 32)" if table == "entries" else "id = 'damaged'"
    db = apsw.Connection(str(file))
    db.execute(f"update {table} set {column} = {how.format(column)} where {which}")
    db.close()

    async def advance(index: int, state: dict[str, Any]) -> None:
        steps.change(state, index)

    async with Runtime(f"sqlite:{file}", recover=True) as rt:
        rt.register(Pipeline("flow", advance, total=STEPS))
        await until_status(rt, "sound", "completed")
        listed: list[str] = []
        with contextlib.suppress(StoreDamagedError):  # behind all the others
            async for run in rt.list():
                listed.append(run.id)
        assert "sound" in listed
        assert {problem.run for problem in [problem async for problem in rt.doctor()]} <= {"damaged"}


@pytest.mark.parametrize("body", ["cast(x'ff' as text)", "'{}'", "'[]'", '\'{"ask":[1],"value":1}\''])
async def test_a_run_whose_mail_is_damaged_is_named_and_not_gone_on_with(tmp_path: Path, body: str) -> None:
    file = await leave_waiting(tmp_path)
    async with Runtime(f"sqlite:{file}") as rt:
        await rt.answer("r1", True)
    tamper(file, f"update inbox set body = {body}")
    async with Runtime(f"sqlite:{tmp_path}/runs.db", crash_limit=1) as rt, asyncio.timeout(10):
        for _ in range(3):  # looking at it is no crash
            with pytest.raises(StoreDamagedError, match="its mail cannot be read"):
                await rt.run(asking, {}, id="r1")


@pytest.mark.parametrize("body", [b"{", b"{}", b"[]", b'{"topic":["x"],"data":1}'])
async def test_damaged_mail_stops_the_run_that_it_comes_for_and_the_others_get_theirs(
    tmp_path: Path, body: bytes
) -> None:
    inside = asyncio.Semaphore(0)

    async def work() -> None:
        inside.release()
        await asyncio.Event().wait()

    @flow
    async def working(state: Any) -> Any:
        async with asyncio.TaskGroup() as together:
            task = together.create_task(call(work))
            told = await receive("x")
            task.cancel()
        return told

    store = SqliteStore(tmp_path / "runs.db")
    async with Runtime(store) as rt, asyncio.timeout(10):
        handles = [await rt.start(working, id=run) for run in ("damaged", "sound")]
        for _ in handles:
            await inside.acquire()
        await store.post_mail("damaged", Mail("send", body))
        with pytest.raises(StoreDamagedError, match="its mail cannot be read"):
            await handles[0].result()
        await store.post_mail("sound", Mail("send", b'{"topic":"x","data":1}'))
        assert await handles[1].result() == 1


@pytest.mark.parametrize("until", ["ended", "settled"])
async def test_whoever_runs_a_damaged_run_that_something_has_come_for_is_told_so(
    tmp_path: Path, until: Literal["ended", "settled"]
) -> None:
    file = await leave_waiting(tmp_path)
    tamper(file, FLIP_QUESTION)
    async with Runtime(f"sqlite:{file}") as rt, asyncio.timeout(10):
        await rt.send("r1", "anything", 1)  # so that it is taken up
        for _ in range(2):
            with pytest.raises(StoreDamagedError, match="checksum"):
                await rt.run(asking, {}, id="r1", until=until)


class Patient(WatchedStore):
    """Tells when somebody waits for a change and there is none."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.waited, self.claims = asyncio.Event(), 0

    async def claim_runs(self, query: Query, owner: str) -> list[Claim]:
        self.claims += 1
        return await super().claim_runs(query, owner)

    async def wait_change(self, seen: int, timeout: float, *, ready: bool = False) -> int:
        if seen:
            self.waited.set()
        return await super().wait_change(seen, timeout, ready=ready)


async def test_a_run_that_the_store_lets_nobody_have_is_not_asked_for_all_the_time(tmp_path: Path) -> None:
    tamper(await leave_waiting(tmp_path), "update runs set status = 'unheard of'")
    store = Patient(SqliteStore(tmp_path / "runs.db"))
    async with Runtime(store) as rt, asyncio.timeout(10):
        running = asyncio.ensure_future(rt.run(asking, {}, id="r1"))
        await store.waited.wait()
        assert store.claims <= 2
        running.cancel()


async def test_a_damaged_run_whose_history_has_expired_is_told_and_not_claimed_all_the_time(
    tmp_path: Path, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    tamper(await leave_waiting(tmp_path, clock=clock, policy=CheckpointPolicy(ttl=60.0)), FLIP_QUESTION)
    store = Patient(SqliteStore(tmp_path / "runs.db"))
    async with Runtime(store, clock=clock) as rt:
        clock.advance(61)
        for _ in range(5):
            assert await rt.prune() == 0
        assert store.claims <= 2  # a runtime that opens prunes as well, at the same time
    assert "the history of run r1 was not removed" in caplog.text


@flow
async def failing(text: str) -> None:
    raise LookupError(text)


async def test_history_that_is_damaged_where_it_ends_is_neither_removed_nor_sealed_anew(
    tmp_path: Path, clock: ManualClock
) -> None:
    url = f"sqlite:{tmp_path}/runs.db"
    async with Runtime(url, clock=clock, policy=CheckpointPolicy(ttl=60.0)) as rt:
        for run in ("damaged", "sound"):
            with pytest.raises(RunFailedError):
                await rt.run(failing, "made", id=run)
    last = "(select max(id) from entries where id < 2 << 32)"
    tamper(tmp_path / "runs.db", f"update entries set body = replace(body, 'made', 'MADE') where id = {last}")
    clock.advance(61)
    async with Runtime(url, clock=clock, create=False) as rt:
        assert await rt.prune() == 1
        assert await rt.load("sound") is None
        assert {(problem.run, problem.seq) async for problem in rt.doctor()} == {("damaged", 3)}


@pytest.mark.parametrize("verb", ["cancel", "pause", "resume"])
async def test_a_run_whose_position_is_damaged_is_named_and_not_kept(tmp_path: Path, verb: str) -> None:
    file = tmp_path / "runs.db"
    await leave_unfinished(file, "damaged")
    db = apsw.Connection(str(file))
    db.execute("update entries set cursor = cast(x'7bff22' as text) where id = (select max(id) from entries)")
    async with Runtime(f"sqlite:{file}") as rt:
        rt.register(Pipeline("flow", steps.change, total=STEPS))  # not asked for its steps before the damage is found
        for _ in range(2):
            with pytest.raises(StoreDamagedError, match="damaged"):
                await getattr(rt, verb)("damaged")
            assert db.execute("select owner from runs").get is None

        async def advance(index: int, state: dict[str, Any]) -> None:
            steps.change(state, index)

        rt.register(Pipeline("flow", advance, total=STEPS))
        assert repr(await (await rt.rewind("damaged@4")).result()) == steps.expected(SEED, STEPS)  # which mends it
    db.close()
