"""Looks at a fleet from the outside: what readers see meanwhile, what every claim made of the limits, what came of it.

How many runs of a limited flow live owners have is counted by the database itself, in the transaction of each claim,
with the same clock and under the same lock. An owner whose lease had run out and who beat again later is not counted:
others may have taken runs in good faith while it was silent, and no store can take them back. Nor is who makes a fork
and has it until it is made: no limit holds for that.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import psycopg

from holdfast.core.transitions import ENDED
from servers.postgres import PostgresServer

_TRIGGERS = """
    create table {schema}.torture_lapses (owner text, name text, at timestamptz default clock_timestamp());
    create table {schema}.torture_claims (
        run text, flow text, fence bigint, attempt bigint, owner text, name text, key text,
        of_flow bigint, of_key bigint
    );
    create function {schema}.torture_beat() returns trigger language plpgsql as $$ begin
        insert into {schema}.torture_lapses (owner, name) values (new.id, new.name);
        return new;
    end $$;
    create trigger torture_beat before update on {schema}.owners for each row
        when (old.lease_until < now()) execute function {schema}.torture_beat();
    create function {schema}.torture_claim() returns trigger language plpgsql as $$ begin
        insert into {schema}.torture_claims
        select new.id, new.flow, new.fence, new.attempt, new.owner,
            (select name from {schema}.owners where id = new.owner), new.key,
            count(*), count(*) filter (where r.key = new.key)
        from {schema}.runs r join {schema}.owners o on o.id = r.owner and o.lease_until > now()
        where r.flow = new.flow and o.name like 'worker-%'
            and r.owner not in (select owner from {schema}.torture_lapses);
        return new;
    end $$;
    create trigger torture_claim after update on {schema}.runs for each row
        when (new.fence > old.fence) execute function {schema}.torture_claim();
"""
ENDED_NAMES = ", ".join(f"'{status}'" for status in ENDED)


class Watch:
    """Reads a store beside its workers, as any other reader would."""

    def __init__(self, server: PostgresServer, schema: str) -> None:
        self._server, self._schema = server, schema
        self._connection: psycopg.Connection[Any] | None = None
        self.entries: dict[tuple[str, int], str] = {}
        """The checksum of each entry that was seen."""
        self.fences: dict[str, int] = {}

    def install(self) -> None:
        """Have every claim written down from now on, and every beat that came too late."""
        with self._server.connect() as admin:
            admin.execute(_TRIGGERS.format(schema=self._schema))

    def close(self) -> None:
        """Let go of the connection."""
        if self._connection is not None:
            with suppress(psycopg.Error):
                self._connection.close()
        self._connection = None

    def rows(self, text: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """What the server answers; `{s}` is the schema. Raises psycopg.OperationalError when it is away."""
        for last in (False, True):
            try:
                if self._connection is None:
                    self._connection = self._server.connect()
                cursor = self._connection.execute(text.format(s=self._schema), values or None)
                return cursor.fetchall() if cursor.description else []
            except psycopg.OperationalError:  # it was away since the last time, or it is right now
                self.close()
                if last:
                    raise
        raise AssertionError("either way it is over by now")

    def _rows(self, text: str) -> list[tuple[Any, ...]]:
        """The same, and nothing while it is away."""
        try:
            return self.rows(text)
        except psycopg.OperationalError:
            return []

    def look(self, chance: random.Random) -> None:
        """See some of the newest entries."""
        text = (
            'select r.id, r.fence, e.seq, e."check" from {s}.runs r join {s}.entries e on e.n = r.n '
            f"where e.seq > r.seq - 3 and abs(hashtext(r.id)) %% 10 = {chance.randrange(10)}"
        ).replace("%%", "%")
        for run, fence, seq, check in self._rows(text):
            assert self.entries.setdefault((run, seq), check) == check, f"{run}@{seq} was seen and is another one now"
            assert fence >= self.fences.get(run, 0), f"run {run}: its fence fell"
            self.fences[run] = fence

    def all_ended(self, roots: int) -> bool:
        """Whether so many runs were started, and all that there are have ended."""
        text = f"select count(*) filter (where parent is null), bool_and(status in ({ENDED_NAMES})) from {{s}}.runs"
        return any(found == roots and ended for found, ended in self._rows(text))

    def left(self) -> list[tuple[Any, ...]]:
        """What has not ended."""
        return self._rows(
            "select r.id, status, attempt, waiting_for, wake_at, o.name, o.lease_until > now() from {s}.runs r "
            f"left join {{s}}.owners o on o.id = r.owner where status not in ({ENDED_NAMES})"
        )

    def claims(self, flow: str) -> list[tuple[Any, ...]]:
        """(run, fence, owner, key, of its flow, of its key) for each claim of a run of that flow."""
        return self._rows(
            f"select run, fence, owner, key, of_flow, of_key from {{s}}.torture_claims where flow = '{flow}'"
        )

    def history(self, run: str) -> list[tuple[Any, ...]]:
        """(fence, attempt, process) for each claim of a run."""
        return self._rows(f"select fence, attempt, name from {{s}}.torture_claims where run = '{run}' order by fence")

    def lapsed(self) -> dict[str, int]:
        """The owners that were silent past their lease, and lived; with their process ids."""
        text = "select owner, name from {s}.torture_lapses"
        return {owner: int(name.rpartition("-")[2]) for owner, name in self._rows(text)}
