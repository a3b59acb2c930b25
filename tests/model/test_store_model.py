"""Every store does, operation for operation, what the store in memory does.

Hypothesis makes up the operations; two objects on the store under test take turns, and one of them is
closed and opened anew now and then. Every reply is compared, and after each operation all that can be read.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar, cast

import msgspec
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from msgspec.structs import replace

from holdfast.clock import Clock
from holdfast.model import Claim, Commit, Head, HeadChange, Limit, Mail, Query, Reply
from holdfast.store.base import Store
from holdfast.store.files import FilesStore, anchors
from holdfast.store.memory import MemoryStore
from holdfast.store.postgres import PostgresStore
from holdfast.store.redis import RedisStore, choosing
from holdfast.store.sqlite import SqliteStore
from holdfast.testing import ManualClock
from holdfast.testing.build import ALICE, BOB, CAROL, entry, head, owner
from servers import redis
from servers.postgres import PostgresServer

T = TypeVar("T")
Make = Callable[[Path, Clock], Store]
# What is to be done when time passes for a store that measures it with a server's clock, and when all is over.
TurnBack = Callable[[Path, float], None]
CleanUp = Callable[[Path], None]
# Such a store sees the time of the test pass as well: that must be nothing beside what the operations let pass.
SLOWER = 1000.0

RUNS = ("a", "b", "B", "c.1")
NAMES = (ALICE, BOB, CAROL)
STATUSES = ("pending", "running", "waiting", "completed")

runs = st.sampled_from(RUNS)
names = st.sampled_from(NAMES)
small = st.integers(0, 4)
times = st.one_of(st.none(), st.sampled_from([0.0, 10.0, 20.5, 1e9]))
expiries = st.one_of(st.none(), st.sampled_from([4e9, 8e9 + 0.5]))  # a store may drop what has expired by itself
scalars = st.sampled_from([None, True, 1, 1.0, "1", "x"])
bodies = st.sampled_from([b"null", b"1", b'{"a": [1, 2]}', '"é\\n🪢"'.encode(), b'{\n"x":1}'])

changes = st.builds(
    lambda fields: HeadChange(**fields),
    st.fixed_dictionaries(
        {},
        optional={
            "status": st.sampled_from(STATUSES),
            "owner": st.sampled_from([None, *NAMES]),
            "attempt": small,
            "wake_at": times,
            "expires_at": expiries,
            "error": st.one_of(st.none(), bodies),
            "waiting_for": st.sampled_from([None, "", "answer"]),
        },
    ),
)

queries = st.builds(
    Query,
    ids=st.one_of(st.none(), st.lists(runs, max_size=3).map(tuple)),
    states=st.one_of(
        st.none(),
        st.lists(
            st.tuples(st.sampled_from(STATUSES), st.sampled_from([None, True, False])), min_size=1, max_size=3
        ).map(tuple),
    ),
    flows=st.sampled_from([None, None, ("f",), ("f", "g")]),
    metadata=st.one_of(st.just(()), st.tuples(st.tuples(st.just("k"), scalars))),
    parent=st.sampled_from([None, None, "a"]),
    created_from=st.sampled_from([None, None, 1001.0]),
    created_before=st.sampled_from([None, None, 1003.0]),
    due_by=st.sampled_from([None, None, 10.0]),
    has_mail=st.sampled_from([None, None, True, False]),
    mail_kinds=st.sampled_from([None, None, ("send",), ("pause", "answer")]),
    after=st.sampled_from([None, None, (1002.0, "b"), (1003.0, "zzz")]),
    idle_by=st.sampled_from([None, None, 10.0]),
    queues=st.sampled_from([None, None, ("default",), ("default", "q")]),
    owner=st.sampled_from([None, None, None, ALICE]),
    but=st.sampled_from([(), (), ("a",)]),
    limit=st.sampled_from([1, 2, 100]),
    in_turn=st.booleans(),
    limits=st.sampled_from([(), (), (Limit("f", 1),), (Limit("f", 2, 1), Limit("g", None, 1))]),
)


class StoreMachine(RuleBasedStateMachine):
    """Drives a store and the model with the same operations."""

    make: Make
    turn_back: TurnBack | None = None
    clean_up: CleanUp | None = None

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.root = Path(tempfile.mkdtemp(prefix="holdfast-model-"))
        self.clock = ManualClock()
        self.model = MemoryStore(self.clock)
        self.stores = [self.opened(), self.opened()]

    def opened(self) -> Store:
        store = type(self).make(self.root, self.clock)
        self.do(store.open())
        return store

    def teardown(self) -> None:
        for store in self.stores:
            self.do(store.close())
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()
        if type(self).clean_up is not None:
            type(self).clean_up(self.root)
        shutil.rmtree(self.root)

    def without_ids(self, mail: tuple[Mail, ...]) -> list[Mail]:
        """Mail for comparison: each store gives its own ids, and a server its own times."""
        return [replace(one, id=0, at=0.0 if self.turn_back else one.at) for one in mail]

    def comparable(self, claims: list[Claim]) -> list[tuple[Any, ...]]:
        return [(claim.head, claim.entries, self.without_ids(claim.mail)) for claim in claims]

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    def done_by_model(self, work: Coroutine[Any, Any, T]) -> T:
        """Without the loop: what is in memory waits for nothing."""
        try:
            work.send(None)
        except StopIteration as done:
            return cast("T", done.value)
        raise AssertionError("the store in memory waits")

    def turn(self) -> Store:
        """One of the store's objects; they take turns."""
        self.stores.reverse()
        return self.stores[0]

    def both(self, ask: Callable[[Store], Coroutine[Any, Any, T]]) -> tuple[T, T]:
        """What the store and the model answer."""
        return self.do(ask(self.turn())), self.done_by_model(ask(self.model))

    def same(self, ask: Callable[[Store], Coroutine[Any, Any, T]]) -> T:
        found, expected = self.both(ask)
        assert found == expected
        return found

    def head(self, run: str) -> Head | None:
        return self.done_by_model(self.model.read_heads([run]))[0]

    def waiting(self, store: Store, run: str) -> list[int]:
        """The ids of a run's mail, as its owner is told them."""
        found = self.head(run)
        if found is None or found.owner is None:
            return []
        do = self.done_by_model if store is self.model else self.do
        (reply,) = do(store.commit([Commit(run=run, owner=found.owner, fence=found.fence)]))
        return [mail.id for mail in reply.mail]

    def committed(self, *batch: tuple[Commit, list[int]]) -> None:
        """Commit to both; each commit takes the mail at these places of its run's inbox.

        One with `heard` knows of so many that wait there.
        """

        def ask(store: Store) -> Coroutine[Any, Any, list[Reply]]:
            waiting = {commit.run: self.waiting(store, commit.run) for commit, _ in batch}

            def with_mail(commit: Commit, places: list[int]) -> Commit:
                ids = waiting[commit.run]
                heard = commit.heard and [0, *ids][min(commit.heard, len(ids))]
                return replace(commit, take=tuple(ids[n] for n in places if n < len(ids)), heard=heard)

            return store.commit([with_mail(commit, places) for commit, places in batch])

        found, expected = self.both(ask)
        assert [reply.refused for reply in found] == [reply.refused for reply in expected]
        last = {commit.run: n for n, (commit, _) in enumerate(batch) if expected[n].refused is None}
        for n in last.values():  # whether the earlier replies of one run see later takes is left open
            assert self.without_ids(found[n].mail) == self.without_ids(expected[n].mail)

    @rule(run=runs, by=names, data=st.data())
    def create(self, run: str, by: str, data: st.DataObject) -> None:
        new = head(
            run,
            owner=by,
            fence=data.draw(small),
            flow=data.draw(st.sampled_from(["f", "g", "'; --"])),
            status=data.draw(st.sampled_from(STATUSES)),
            parent=data.draw(st.sampled_from([None, "a"])),
            metadata=msgspec.json.encode(data.draw(st.dictionaries(st.sampled_from(["k", "l"]), scalars))),
            created_at=1000.0 + data.draw(small),
            wake_at=data.draw(times),
            queue=data.draw(st.sampled_from(["default", "q", "é'"])),
            priority=data.draw(st.sampled_from([0, 0, 7, -1])),
            key=data.draw(st.sampled_from([None, "k1", "k2"])),
        )
        entries = tuple(entry(seq, fence=new.fence) for seq in range(1, 2 + data.draw(small)))
        change = data.draw(st.one_of(st.none(), changes))
        self.committed((Commit(run=run, owner=by, fence=new.fence, create=new, entries=entries, change=change), []))

    def drawn(self, run: str, ahead: int, data: st.DataObject) -> tuple[Commit, list[int]]:
        """A commit that mostly fits the run as it stands; `ahead` is how many entries came before in its batch."""
        now = self.head(run) or head(run)
        by = data.draw(st.sampled_from([now.owner or ALICE] * 6 + [BOB]))
        fence = now.fence + data.draw(st.sampled_from([0] * 8 + [1, -1]))
        start = now.seq + ahead + 1 + data.draw(st.sampled_from([0] * 8 + [1, -1]))
        count = data.draw(st.integers(0, 3))
        entries = tuple(entry(seq, fence=fence, body=data.draw(bodies)) for seq in range(start, start + count))
        change = data.draw(st.one_of(st.none(), changes))
        kept = self.done_by_model(self.model.read_entries(run))
        rebase = data.draw(st.sampled_from([None, None, *kept])) if kept else None
        if rebase is not None:
            rebase = replace(rebase, body=b'"snapshot"', check="rebased")
            change = replace(change or HeadChange(), base=rebase.seq, floor=rebase.seq)
        places = data.draw(st.lists(st.integers(0, 3), max_size=2, unique=True))
        heard = data.draw(st.sampled_from([None, None, 0, 1, 2, 9]))
        return Commit(
            run=run, owner=by, fence=fence, entries=entries, change=change, rebase=rebase, heard=heard
        ), places

    @precondition(lambda self: any(self.done_by_model(self.model.read_heads(RUNS))))
    @rule(run=runs, data=st.data())
    def commit(self, run: str, data: st.DataObject) -> None:
        self.committed(self.drawn(run, 0, data))

    @precondition(lambda self: any(self.done_by_model(self.model.read_heads(RUNS))))
    @rule(several=st.lists(runs, min_size=2, max_size=4), data=st.data())
    def commit_several(self, several: list[str], data: st.DataObject) -> None:
        batch: list[tuple[Commit, list[int]]] = []
        for run in several:
            ahead = sum(len(commit.entries) for commit, _ in batch if commit.run == run)
            drawn, places = self.drawn(run, ahead, data)
            batch.append((replace(drawn, rebase=None), places))
        self.committed(*batch)

    @rule(query=queries, by=names)
    def claim(self, query: Query, by: str) -> None:
        found, expected = self.both(lambda store: store.claim_runs(query, by))
        assert self.comparable(found) == self.comparable(expected)

    @rule(run=runs, body=bodies, key=st.sampled_from([None, None, "k1", "k2"]))
    def post(self, run: str, body: bytes, key: str | None) -> None:
        self.same(lambda store: store.post_mail(run, Mail("send", body, key)))

    @rule(run=runs)
    def delete(self, run: str) -> None:
        self.same(lambda store: store.delete_run(run))

    @rule(by=names)
    def beat(self, by: str) -> None:
        self.stores[0].beat(owner(by), 15.0 * SLOWER if self.turn_back else 15.0)
        self.model.beat(owner(by), 15.0)

    def retire(self, by: str) -> None:
        self.same(lambda store: store.retire_owner(by))

    @rule(by=names)
    def retire_one(self, by: str) -> None:
        self.retire(by)

    @rule(seconds=st.sampled_from([1.0, 8.0, 16.0]))
    def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)
        if type(self).turn_back is not None:
            type(self).turn_back(self.root, seconds * SLOWER)

    @rule()
    def reopen(self) -> None:
        for by in NAMES:  # as a runtime does before it closes its store
            self.retire(by)
        self.do(self.stores.pop().close())
        self.stores.append(self.opened())

    @rule(query=queries)
    def list(self, query: Query) -> None:
        self.same(lambda store: store.list_heads(query))

    @rule(run=runs, after=small, upto=st.one_of(st.none(), small), limit=st.one_of(st.none(), small))
    def read(self, run: str, after: int, upto: int | None, limit: int | None) -> None:
        self.same(lambda store: store.read_entries(run, after=after, upto=upto, limit=limit))

    @invariant()
    def everything_is_the_same(self) -> None:
        async def everything(turn: Callable[[], Store]) -> list[Any]:
            entries = [await turn().read_entries(run) for run in RUNS]
            alive = {one.id for one in await turn().list_owners() if one.alive}
            return [await turn().read_heads(RUNS), await turn().list_heads(Query()), *entries, alive]

        # In one piece each, because starting and ending the loop takes longer than reading.
        assert self.do(everything(self.turn)) == self.done_by_model(everything(lambda: self.model))

    @invariant()
    def nothing_is_wrong(self) -> None:
        assert self.do(self.turn().inspect()) == []


STORES: dict[str, Make] = {
    "sqlite": lambda root, clock: SqliteStore(root / "runs.db", clock=clock, durability="process"),
    "files": lambda root, clock: FilesStore(root, clock=clock, durability="process"),
}
STORES["files with anchors everywhere"] = STORES["files"]
STORES["redis"] = lambda root, clock: RedisStore(redis.shared_server().url(), prefix=root.name)
TURN_BACK: dict[str, TurnBack] = {"redis": lambda root, by: redis.pass_time(redis.shared_server(), root.name, by)}
CLEAN_UP: dict[str, CleanUp] = {"redis": lambda root: redis.clear(redis.shared_server(), root.name)}


@pytest.mark.parametrize("name", STORES)
def test_a_store_does_what_the_store_in_memory_does(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if "anchors" in name:
        for setting in ("EVERY", "AT_SEGMENT", "SHARE"):
            monkeypatch.setattr(anchors, setting, 0)
    for setting in ("READ_AT_LEAST", "READ_AT_MOST", "DEPTH"):  # so that few runs are many pages
        monkeypatch.setattr(choosing, setting, 1)
    # Each reply of a server comes from another process: a few examples take as long as all of another store.
    examples = 20 if name == "redis" else 60
    drive({"make": STORES[name], "turn_back": TURN_BACK.get(name), "clean_up": CLEAN_UP.get(name)}, examples)


def test_postgres_does_what_the_store_in_memory_does(postgres: PostgresServer, postgres_store: str) -> None:
    drive(
        {
            "make": lambda root, clock: PostgresStore(postgres.url(postgres_store), durability="process"),
            "turn_back": lambda root, by: postgres.turn_back(postgres_store, by),
            "clean_up": lambda root: postgres.clear(postgres_store),
        },
        examples=20,
    )


def drive(parts: dict[str, Callable[..., Any] | None], examples: int) -> None:
    """Let Hypothesis drive the store that `make` gives, with what else is to be done for it."""
    statics = {part: staticmethod(value) for part, value in parts.items() if value is not None}
    machine = type("Machine", (StoreMachine,), statics)
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=30,
            deadline=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        ),
    )
