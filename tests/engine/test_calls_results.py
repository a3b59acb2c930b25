"""What journaled calls give: of the types that their functions declare, and as they were stored."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pydantic
import pytest

from engine.lives import Lives, MakeRuntime, MakeStore, Once
from holdfast import Pipeline, call, flow
from holdfast.errors import RunFailedError
from holdfast.testing import ManualClock


@pytest.fixture
def lives(make_runtime: MakeRuntime, make_store: MakeStore, clock: ManualClock) -> Lives:
    return Lives(make_runtime, make_store, clock)


@dataclass
class Page:
    url: str
    links: tuple[str, ...] = ()


class Verdict(pydantic.BaseModel):
    good: bool
    why: str


async def test_results_come_back_as_the_types_that_the_functions_declare(lives: Lives) -> None:
    once = Once()

    async def fetch() -> Page:
        return Page("a", ("b", "c"))

    def judge(page: Page) -> Verdict:
        return Verdict(good=True, why=page.url)

    async def several() -> dict[str, list[Page | None]]:
        return {"x": [Page("z"), None]}

    async def plain() -> Any:
        return [(1, {2}), b"3", datetime(2026, 1, 2, tzinfo=UTC)]

    @flow
    async def types() -> bool:
        page = await call(fetch)
        got = [page, await call(judge, page), await call(several), await call(plain)]
        await once.wait()
        return got == [
            Page("a", ("b", "c")),
            Verdict(good=True, why="a"),
            {"x": [Page("z"), None]},
            [(1, {2}), b"3", datetime(2026, 1, 2, tzinfo=UTC)],
        ]

    await lives.cut(types, at=once.reached)
    assert await lives.finish(types) is True


class Opaque:
    """Cannot be stored, but functions may say that they return it."""


async def test_a_declared_type_that_cannot_be_stored_does_no_harm_until_it_is_returned(lives: Lives) -> None:
    async def none() -> Opaque | None:
        return None

    async def one() -> Opaque:
        return Opaque()

    @flow
    async def opaque() -> Any:
        assert await call(none) is None
        await call(one)

    with pytest.raises(RunFailedError, match="Opaque"):
        await lives.finish(opaque)


async def test_what_is_done_to_a_result_does_not_change_what_was_stored(lives: Lives) -> None:
    once = Once()

    async def words() -> list[str]:
        return ["a"]

    async def body(state: dict[str, Any]) -> dict[str, Any]:
        found = await call(words)
        found.append("b")
        await once.wait()
        return {"found": found}

    pipeline = Pipeline("p", [body])
    await lives.cut(pipeline, {}, at=once.reached)
    assert await lives.finish(pipeline, {}) == {"found": ["a", "b"]}
