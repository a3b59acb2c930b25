"""Once nothing is disturbed any more, a run that nobody drives is taken up within two leases.

Nobody drives a run that waits in a queue or was handed back, and one whose owner's process is dead, from its death on:
its lease is part of the time. It need not be taken up while every worker is busy, or its flow is at its limit. The time
is the server's. What counts between two looks is at most LOOK: on a machine that stands still for a while the one who
looks stands still as well, and nobody is blamed for that.
"""

from __future__ import annotations

from collections.abc import Collection

from .fleet_flows import LIMIT, limited
from .fleet_watch import ENDED_NAMES, Watch
from .fleet_worker import LEASE

PROMISED = 2 * LEASE
LOOK = 0.25

_CLAIMABLE = f"""
    with living as (
        select o.id, o.name = any (%s) as works from {{s}}.owners o where o.lease_until > now()
    ), held as (
        select r.owner, r.flow, r.key from {{s}}.runs r join living l on l.id = r.owner
        where r.status not in ({ENDED_NAMES})
    )
    select extract(epoch from clock_timestamp())::float8, array(
        select row (r.id, r.fence)::text from {{s}}.runs r left join {{s}}.owners o on o.id = r.owner
        where (r.status in ('pending', 'running', 'interrupted') or r.status = 'waiting' and r.wake_at is not null)
            and coalesce(r.wake_at, 0) <= extract(epoch from now())
            and (o.id is null or o.name <> all (%s))
            and (r.flow <> '{limited.name}' or (
                (select count(*) from held h where h.flow = r.flow) < {LIMIT.total}
                and (select count(*) from held h where h.flow = r.flow and h.key = r.key) < {LIMIT.per_key}))
            and exists (select 1 from living l where l.works
                and (select count(*) from held h where h.owner = l.id) < %s)
    )
"""


class Claimable:
    """Looks now and then, from the last fault on."""

    def __init__(self, watch: Watch, concurrency: int) -> None:
        self._watch, self._concurrency = watch, concurrency
        self._waited: dict[str, float] = {}
        self._looked = float("inf")
        self.longest = 0.0
        """Seconds, of all runs."""

    def look(self, living: Collection[str]) -> None:
        """Raises AssertionError when a run has waited for too long. `living` are the names of the workers."""
        names = list(living)
        ((now, found),) = self._watch.rows(_CLAIMABLE, (names, names, self._concurrency))
        passed = min(max(now - self._looked, 0.0), LOOK)
        # One that is under way under another fence than before was taken up in between.
        self._waited = {run: self._waited[run] + passed if run in self._waited else 0.0 for run in found}
        self._looked = now
        for run, waited in self._waited.items():
            self.longest = max(self.longest, waited)
            assert waited <= PROMISED, f"nobody has taken up {run} for {waited:.1f} s: {self._watch.left()}"
