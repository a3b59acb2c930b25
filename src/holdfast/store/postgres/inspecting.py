"""What can be wrong with the tables as such; the doctor reads the runs themselves."""

from __future__ import annotations

# One statement, so that all of it is seen at one moment while runs are live.
INSPECT = """
    select r.id, 'the run has no log' from runs r where not exists (select 1 from entries e where e.n = r.n)
    union all
    select r.id, 'its log has gaps' from runs r
    join (select n from entries group by n having count(*) <> max(seq) - min(seq) + 1) e on e.n = r.n
    union all
    select r.id, 'its log ends at ' || e.last || ', but the run says ' || r.seq from runs r
    join (select n, max(seq) as last from entries group by n) e on e.n = r.n where e.last <> r.seq
    union all
    select null, count(*) || ' entries belong to no run' from entries e
    where not exists (select 1 from runs r where r.n = e.n) having count(*) > 0
    union all
    select null, count(*) || ' pieces of mail belong to no run' from inbox i
    where not exists (select 1 from runs r where r.n = i.n) having count(*) > 0
    union all
    select null, 'table ' || c.relname || ' has a trigger that is not ours: ' || t.tgname
    from pg_trigger t join pg_class c on c.oid = t.tgrelid
    where c.relnamespace = current_schema()::regnamespace and not t.tgisinternal
"""
