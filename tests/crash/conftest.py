"""Children for the crash tests: one nursery for each worker of the test run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .nursery import Nursery
from .stores import KINDS


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    """Starts children, one at a time."""
    made = Nursery()
    yield made
    made.close()


@pytest.fixture(scope="session")
def other_nursery() -> Iterator[Nursery]:
    """For a second child beside the first."""
    made = Nursery()
    yield made
    made.close()


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    """Each durable store."""
    return str(request.param)
