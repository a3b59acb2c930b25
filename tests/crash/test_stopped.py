"""A worker that was stopped past its lease finds its run taken over, and says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from servers import redis
from servers.postgres import PostgresServer

from . import stopped
from .nursery import Nursery


@pytest.mark.parametrize("moment", stopped.MOMENTS)
def test_the_late_write_of_a_stopped_worker_is_refused(
    kind: str, moment: stopped.Moment, tmp_path: Path, nursery: Nursery, other_nursery: Nursery
) -> None:
    told = stopped.torture(kind, 7, tmp_path / "place", nursery, other_nursery, moment)
    assert "taken over by another process" in told
    assert "late write was refused" in told


@pytest.mark.parametrize("moment", stopped.MOMENTS)
def test_the_late_write_of_a_stopped_worker_is_refused_by_postgresql(
    postgres: PostgresServer,
    postgres_schema: str,
    moment: stopped.Moment,
    tmp_path: Path,
    nursery: Nursery,
    other_nursery: Nursery,
) -> None:
    store = postgres.url(postgres_schema)
    told = stopped.torture("postgres", 7, tmp_path / "place", nursery, other_nursery, moment, served=store)
    assert "late write was refused" in told


@pytest.mark.parametrize("moment", stopped.MOMENTS)
def test_the_late_write_of_a_stopped_worker_is_refused_by_redis(
    moment: stopped.Moment, tmp_path: Path, nursery: Nursery, other_nursery: Nursery
) -> None:
    store = redis.shared_server().url(redis.new_prefix())
    told = stopped.torture("redis", 7, tmp_path / "place", nursery, other_nursery, moment, served=store)
    assert "late write was refused" in told
