"""A worker of the command line whose PostgreSQL server goes away and comes back, or does not let it write."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import pytest

from servers.postgres import PostgresServer

from .test_cli_worker import TIDES, get, said


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    """One that may be stopped."""
    made = PostgresServer.create()
    yield made
    made.remove()


def test_a_worker_outlives_an_outage_of_its_server_and_goes_on_by_itself(cli: Any, server: PostgresServer) -> None:
    cli.environment["HOLDFAST_STORE"] = server.url()
    worker = cli.start("worker", "app.py", "--lease", "3", "--health", "127.0.0.1:0", STOP_IN="analyze")
    health = said(worker, r"health: (http://\S+)")[1]
    assert cli("start", "app.py:report", TIDES, "--id", "r1", "--queue", "mail").returncode == 0
    assert worker.stdout.readline() == "in analyze\n"
    server.stop("immediate")
    cli.let_go()  # the step ends, and what it came to cannot be written
    while get(health)[1]["runs"]:
        pass
    said(worker, "could not look for runs to take up")
    server.start()
    # The step is done again: its result was nowhere. What was committed before is not.
    assert worker.stdout.readline() == "in analyze\n"
    cli.let_go()
    said(worker, "r1 completed")
    assert worker.poll() is None
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(20) == 0
    assert cli.ledger == ["search", "analyze", "analyze", "write"]


def test_a_worker_that_may_only_read_says_which_grant_is_missing_and_goes_on_with_it(
    cli: Any, postgres: PostgresServer, postgres_schema: str
) -> None:
    reader = f"{postgres_schema}_reader"
    assert cli("start", "app.py:oracle", "1", "--id", "r1", "--store", postgres.url(postgres_schema)).returncode == 0
    with postgres.connect() as admin:
        admin.execute(f"create role {reader} login")
        admin.execute(f"grant usage on schema {postgres_schema} to {reader}")
        admin.execute(f"grant select on all tables in schema {postgres_schema} to {reader}")
        try:
            worker = cli.start("worker", "app.py", "--store", postgres.url(postgres_schema, user=reader))
            trouble = said(worker, "could not look for runs to take up: (.*)")[1]
            assert "permission denied for table owners. Let an administrator run: GRANT " in trouble
            admin.execute(trouble.partition("Let an administrator run: ")[2])
            said(worker, "r1 completed")
            worker.send_signal(signal.SIGTERM)
            assert worker.wait(20) == 0
        finally:
            admin.execute(f"drop owned by {reader}")
            admin.execute(f"drop role {reader}")
