"""A wrong setting is refused where it is written, not when money has been spent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from holdfast import CheckpointPolicy, Pipeline, RetryPolicy, step
from holdfast.errors import UsageError


def nothing(state: Any) -> None:
    pass


WRONG: dict[str, Callable[[], Any]] = {
    "retry=3": lambda: step(retry=3)(nothing),  # type: ignore[arg-type]
    "timeout='5'": lambda: step(timeout="5")(nothing),  # type: ignore[arg-type]
    "timeout=0": lambda: step(timeout=0)(nothing),
    "executor=4": lambda: step(executor=4)(nothing),  # type: ignore[arg-type]
    "attempts=0": lambda: RetryPolicy(attempts=0),
    "attempts='3'": lambda: RetryPolicy(attempts="3"),  # type: ignore[arg-type]
    "never=[...]": lambda: RetryPolicy(never=[ValueError]),  # type: ignore[arg-type]
    "first_delay='1'": lambda: RetryPolicy(first_delay="1"),  # type: ignore[arg-type]
    "jitter=2": lambda: RetryPolicy(jitter=2),
    "policy=3": lambda: Pipeline("p", [nothing], policy=3),  # type: ignore[call-overload]
    "interval='5'": lambda: CheckpointPolicy(interval="5"),  # type: ignore[arg-type]
    "ttl=-1": lambda: CheckpointPolicy(ttl=-1),
    "every_n_steps=0": lambda: CheckpointPolicy(every_n_steps=0),
    "keep_latest=True": lambda: CheckpointPolicy(keep_latest=True),
    "on_complete='b'": lambda: CheckpointPolicy(on_complete="b"),
    "on_finish='drop'": lambda: CheckpointPolicy(on_finish="drop"),  # type: ignore[arg-type]
    "total=2.5": lambda: Pipeline("p", nothing, total=2.5),  # type: ignore[call-overload]
    "no steps": lambda: Pipeline("p", []),
    "a name twice": lambda: Pipeline("p", [nothing, nothing]),
    "a step that is no function": lambda: Pipeline("p", [3]),  # type: ignore[list-item]
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_it_is_refused_at_once(wrong: Callable[[], Any]) -> None:
    with pytest.raises(UsageError):
        wrong()
