"""A graph with everything in it, cut off behind every single commit, ends as if nothing had happened."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from conftest import MakeRuntime, MakeStore
from holdfast import CheckpointPolicy, Goto, Graph, Pipeline, RetryPolicy, flow
from holdfast.model import Commit
from holdfast.testing import ManualClock
from waiting import until_status
from watched import WatchedStore, kill

State = dict[str, Any]
WIDTH = 4


class Everything:
    """Branch, loop, parallel functions and flows, a race, a map, a subgraph and a compensation."""

    def __init__(self, policy: CheckpointPolicy | None) -> None:
        self.done = Counter[str]()
        graph = self.graph = Graph("everything", policy=policy)

        @graph.node(start=True)
        async def count(state: State) -> State:
            self.done[f"count {state['n']}"] += 1
            return {**state, "n": state["n"] + 1}

        @graph.node(retry=RetryPolicy(attempts=2, first_delay=0), compensate=self.undo, goto=["last"])
        def fails(state: State) -> State:
            raise ConnectionError("down")

        inner = Pipeline("inner", [self.named("inner 1"), self.named("inner 2")])
        graph.parallel("both", [self.named("left"), self.as_flow("right")], reduce=self.keep("both"))
        graph.parallel("race", [self.as_flow("never"), self.named("fast")], merge="first", reduce=self.keep("race"))
        graph.map("each", over=lambda state: range(6), node=self.item, concurrency=WIDTH)
        graph.node(inner)
        graph.node(self.last, name="last")
        graph.branch(count, lambda state: state["n"] < 3, {True: count, False: "both"})
        for source, target in (("both", "race"), ("race", "each"), ("each", inner), (inner, fails)):
            graph.edge(source, target)

    def named(self, name: str) -> Any:
        async def body(state: State) -> State:
            self.done[name] += 1
            return {**state, "seen": [*state.get("seen", []), name]}

        body.__name__ = name.replace(" ", "_")
        return body

    def as_flow(self, name: str) -> Any:
        async def body(state: State) -> str:
            self.done[name] += 1
            if name == "never":
                await asyncio.Event().wait()
            return name

        return flow(name=name)(body)

    async def item(self, n: int) -> int:
        self.done[f"item {n}"] += 1
        return n * n

    def keep(self, name: str) -> Any:
        return lambda state, results: {**state, name: [r if type(r) is str else sorted(r) for r in results]}

    def undo(self, state: State, error: Exception) -> Goto:
        self.done["undo"] += 1
        return Goto("last", {**state, "error": str(error)})

    def last(self, state: State) -> State:
        self.done["last"] += 1
        return {**state, "last": True}


RESULT = {
    "n": 3,
    "both": [["n", "seen"], "right"],
    "race": [["both", "n", "seen"]],
    "each": [n * n for n in range(6)],
    "seen": ["inner 1", "inner 2"],
    "error": "down",
    "last": True,
}
POLICIES = [None, CheckpointPolicy(every_n_steps=3)]


@pytest.mark.parametrize("policy", POLICIES, ids=["every step", "every third"])
async def test_cut_off_behind_every_commit_it_ends_the_same(
    make_runtime: MakeRuntime, make_store: MakeStore, clock: ManualClock, policy: CheckpointPolicy | None
) -> None:
    commits, cut = 10**9, 0
    while cut < commits:
        cut += 1
        everything, run = Everything(policy), f"r{cut}"
        store = WatchedStore(make_store())
        async with make_runtime(store) as rt:
            running = asyncio.ensure_future(rt.run(everything.graph, {"n": 0}, id=run))
            if await _ended_uncut(running, store, cut):
                commits = store.commits  # that were all of them
            await kill(rt, store, clock)
        await asyncio.gather(running, return_exceptions=True)
        before = everything.done.copy()
        async with make_runtime() as rt:
            assert await rt.run(everything.graph, {"n": 0}, id=run) == RESULT, f"cut off behind commit {cut}"
            await rt.recover()  # what was cancelled shortly before its process died is so now
            for child in [child.id async for child in rt.list(parent=run)]:
                await until_status(rt, child, "completed", "cancelled")
        repeated = {name for name, times in everything.done.items() if times > 1}
        assert len(repeated) <= (WIDTH if policy is None else WIDTH + 3), (cut, repeated)
        assert all(times <= 2 for times in everything.done.values()), (cut, everything.done)
        assert repeated <= set(before)
    assert commits > 20


async def _ended_uncut(running: asyncio.Future[Any], store: WatchedStore, cut: int) -> bool:
    """Let nothing be written any more behind that commit, and wait until that was tried or the run has ended.

    It need not end by that: when only a child had something to write, its parent waits for better times.
    """
    tried = asyncio.Event()

    def refuse(commit: Commit) -> bool:
        if store.commits >= cut:
            tried.set()
        return store.commits >= cut

    store.refuse = refuse
    trying = asyncio.ensure_future(tried.wait())
    await asyncio.wait({running, trying}, return_when=asyncio.FIRST_COMPLETED)
    trying.cancel()
    return not tried.is_set()
