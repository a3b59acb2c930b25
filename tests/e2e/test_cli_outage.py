"""A worker of the command line whose PostgreSQL server goes away and comes back."""

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
