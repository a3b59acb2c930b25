"""A wrong setting is refused where it is written, not when money has been spent."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, nan
from pathlib import Path
from typing import Any

import pytest

from holdfast import CheckpointPolicy, Pipeline, RetryPolicy, Runtime, call, sleep, step
from holdfast.blocking import Runtime as BlockingRuntime
from holdfast.errors import UsageError
from holdfast.store.sqlite import SqliteStore


def nothing(state: Any) -> None:
    pass


WRONG: dict[str, Callable[[], Any]] = {
    "retry=3": lambda: step(retry=3)(nothing),  # type: ignore[arg-type]
    "timeout='5'": lambda: step(timeout="5")(nothing),  # type: ignore[arg-type]
    "timeout=0": lambda: step(timeout=0)(nothing),
    "executor=4": lambda: step(executor=4)(nothing),  # type: ignore[arg-type]
    "timeout=inf": lambda: step(timeout=inf)(nothing),
    "timeout=1e18": lambda: step(timeout=1e18)(nothing),
    "timeout=nan of one call": lambda: call.options(timeout=nan)(nothing),
    "timeout=inf of one call": lambda: call.options(timeout=inf)(nothing),
    "sleep(inf)": lambda: sleep(inf),
    "attempts=0": lambda: RetryPolicy(attempts=0),
    "attempts='3'": lambda: RetryPolicy(attempts="3"),  # type: ignore[arg-type]
    "never=[...]": lambda: RetryPolicy(never=[ValueError]),  # type: ignore[arg-type]
    "first_delay='1'": lambda: RetryPolicy(first_delay="1"),  # type: ignore[arg-type]
    "first_delay=nan": lambda: RetryPolicy(first_delay=nan),
    "first_delay=-1": lambda: RetryPolicy(first_delay=-1),
    "first_delay=inf": lambda: RetryPolicy(first_delay=inf),
    "max_delay=nan": lambda: RetryPolicy(max_delay=nan),
    "max_delay=inf": lambda: RetryPolicy(max_delay=inf),
    "factor=nan": lambda: RetryPolicy(factor=nan),
    "factor=inf": lambda: RetryPolicy(factor=inf),
    "factor=0.5": lambda: RetryPolicy(factor=0.5),
    "jitter=nan": lambda: RetryPolicy(jitter=nan),
    "jitter=2": lambda: RetryPolicy(jitter=2),
    "policy=3": lambda: Pipeline("p", [nothing], policy=3),  # type: ignore[call-overload]
    "interval='5'": lambda: CheckpointPolicy(interval="5"),  # type: ignore[arg-type]
    "ttl=-1": lambda: CheckpointPolicy(ttl=-1),
    "ttl=inf": lambda: CheckpointPolicy(ttl=inf),
    "throttle=nan": lambda: CheckpointPolicy(throttle=nan),
    "every_n_steps=True": lambda: CheckpointPolicy(every_n_steps=True),
    "every_n_steps=0": lambda: CheckpointPolicy(every_n_steps=0),
    "keep_latest=True": lambda: CheckpointPolicy(keep_latest=True),
    "on_complete='b'": lambda: CheckpointPolicy(on_complete="b"),
    "on_complete=5": lambda: CheckpointPolicy(on_complete=5),  # type: ignore[arg-type]
    "on_complete=[1]": lambda: CheckpointPolicy(on_complete=[1]),  # type: ignore[list-item]
    "on_complete=(... for ...)": lambda: CheckpointPolicy(on_complete=(n for n in "ab")),  # type: ignore[arg-type]
    "on_finish='drop'": lambda: CheckpointPolicy(on_finish="drop"),  # type: ignore[arg-type]
    "total=2.5": lambda: Pipeline("p", nothing, total=2.5),  # type: ignore[call-overload]
    "grace=nan": lambda: Runtime(None, grace=nan),
    "lease=inf": lambda: Runtime(None, lease=inf),
    "no steps": lambda: Pipeline("p", []),
    "a name twice": lambda: Pipeline("p", [nothing, nothing]),
    "a step that is no function": lambda: Pipeline("p", [3]),  # type: ignore[list-item]
}

NO_STORES: dict[Any, str] = {
    5: "5 is no store. Use sqlite:FILE",
    b"x": "b'x' is no store. Use sqlite:FILE",
    SqliteStore: "is no store.*or a store object",
    "sqlite:a\0b": r"a\\x00b' has a character that no name",
    "a\0b": r"a\\x00b' has a character that no name",
    "file:\ud800": r"ud800' has a character that no name",
    "sqlite::memory:": "Write memory: to keep runs in memory",
    ":memory:": "Use .* or memory:",
    "sqlite:///a.db": "Write sqlite:a.db for the one below this folder, sqlite:/a.db for the one below /",
    "sqlite:////tmp/a.db": "sqlite:/tmp/a.db for the one below /",
    "sqlite:file:a.db?mode=ro": "has a URI where a file's name belongs",
    "memory": "'memory' is a kind of store.*or memory:; for a file of that name, sqlite:memory",
    "redis": "'redis' is a kind of store.*redis://HOST",
}


@pytest.mark.parametrize(("given", "told"), NO_STORES.items(), ids=map(ascii, NO_STORES))
def test_what_is_no_store_is_refused_with_what_to_write(
    given: Any, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=told):
        Runtime(given)
    assert list(tmp_path.iterdir()) == []


def test_a_file_may_have_the_name_of_a_kind_of_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for given in ("sqlite:memory", "./redis", Path("file")):
        with BlockingRuntime(given):
            pass
    assert all((tmp_path / name).is_file() for name in ("memory", "redis", "file"))


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_it_is_refused_at_once(wrong: Callable[[], Any]) -> None:
    with pytest.raises(UsageError):
        wrong()
