"""What was already done inside the step that is under way, found again by its key (`core.keys` has their grammar).

The bodies of the entries, each with `key`, `name`, `args` (a digest, where they matter), `of`, the seq of the
checkpoint that the step began with, and `tried`, how many attempts of the call around it had failed, where some had:

    intent    {"on_doubt"}                        the call begins; no result behind it means that it is in doubt
    call      {"result"} {"error"} {"abandoned"}  how it ended, as the code that made it saw it
              both with {"step": true}            where it is no call but the step itself
    wait      {"wait": "ask" | "receive" | "sleep" | "child", "until", ...}
    received  {"signal": seq, "topic", "result"}  a message was handed to a `receive`
    answer    {"ask", "result"}                   an answer was handed to an `ask`

and of those without a key:

    signal      {"topic", "data", "at"}           a message came in, which was sent then; with "again", its seq, it was
                                                  put back
    waiting     {"for", "until"}                  the run was let go; its code had not come to children, "unasked", or
                                                  answers, "unread": [mail, times in a row]
    emitted     {"name", "data", "path"}          a chunk of a stream
    superseded  {"seqs"}                          chunks of an attempt that went another way the next time
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count
from typing import Any, Literal

import msgspec

from holdfast.core.codec import Tree, canonical
from holdfast.core.history import read_body
from holdfast.core.keys import named
from holdfast.model import CHECKPOINT_KINDS, RESULT_KINDS, Entry, Kind

Ended = Literal["result", "error", "abandoned", "timed_out"]
_ENDS: tuple[Ended, ...] = ("result", "error", "abandoned", "timed_out")
_OF_AN_INTENT = ("key", "name", "args", "on_doubt", "step")


class Record(msgspec.Struct, gc=False):
    """What the log says of one call or wait."""

    key: str
    kind: str
    seq: int
    body: dict[str, Any]

    @property
    def ended(self) -> Ended | None:
        """How it came to its end; None for an intent or a wait without one."""
        return next((how for how in _ENDS if how in self.body), None)

    @property
    def in_doubt(self) -> bool:
        """Whether it began and nobody knows whether it was done."""
        return self.kind == Kind.INTENT or bool(self.body.get("doubt"))


class Journal:
    """The calls, waits and chunks of the steps behind the last checkpoint."""

    def __init__(self) -> None:
        self._records: dict[str, Record] = {}
        self._asked: set[str] = set()
        self.replays = False
        """Whether calls may be found: the body, or a part of it, has run before."""
        self._failed: set[str] = set()
        self._tried: set[str] = set()
        """What was begun in another attempt of the call around it than the first."""
        self._steps: dict[str, str] = {}
        """By their numbers: the keys of steps that are journaled as a whole."""
        self._mixed: set[str] = set()
        """The calls of each step that were made in another order than before."""
        self._alike: dict[tuple[str, Any], list[str]] | None = None
        """The keys of calls by name and arguments, as far as they were known when that was first asked for."""
        self._chunks: dict[str, list[Chunk]] = {}
        self._reached: dict[str, int] = {}
        self._before: set[str] = set()
        """Where chunks of an earlier attempt may be left."""
        self.let_go_with: dict[str, Any] = {}
        """What was said when the run was let go, where nothing has happened since."""

    @classmethod
    def of(cls, run: str, entries: Iterable[Entry]) -> Journal | None:
        """What a stretch of (verified) log holds behind its last checkpoint; None when that is nothing."""
        entries = list(entries)
        journal, start = cls(), 0
        for place in range(len(entries) - 1, -1, -1):
            if entries[place].kind in CHECKPOINT_KINDS:
                if b'"journal":' in entries[place].body:  # a state is not read twice for nothing
                    for kind, seq, body in read_body(run, entries[place]).get("journal", ()):
                        journal.add(kind, seq, body)
                start = place + 1
                break
        for entry in entries[start:]:
            if entry.kind == Kind.ATTEMPT_FAILED:
                journal.new_attempt()
            elif entry.kind in _KEPT:
                journal.add(entry.kind, entry.seq, read_body(run, entry))
        if entries and entries[-1].kind == Kind.WAITING:
            journal.let_go_with = read_body(run, entries[-1])
        journal.replays = bool(journal._records)
        return journal if journal._records or journal._chunks or journal._failed else None

    def add(self, kind: str, seq: int, body: dict[str, Any]) -> None:
        """The log holds this as well."""
        if kind == Kind.EMITTED:
            self._before.add(body["path"])
            self._chunks.setdefault(body["path"], []).append(Chunk(seq, (body["name"], body["data"])))
        elif kind == Kind.SUPERSEDED:
            gone = set(body["seqs"])
            for chunks in self._chunks.values():
                chunks[:] = [chunk for chunk in chunks if chunk.seq not in gone]
        elif kind in _KEYED:
            if "+" in body["key"]:
                self._mixed.add(named(body["key"])[0])
            if body.get("step"):
                self._steps[body["key"].partition("/")[0]] = body["key"]
            self._records[body["key"]] = record = Record(body["key"], kind, seq, body)
            if "tried" in body:
                self._tried.add(body["key"])
            if self._tried and record.ended is not None:
                self._tried = {key for key in self._tried if not key.startswith(f"{record.key}/")}

    def find(self, key: str) -> Record | None:
        """What is known of the call or wait; it counts as asked for from now on."""
        self._asked.add(key)
        return self._records.get(key)

    def locate(self, key: str, args: str | None) -> tuple[str, Record | None]:
        """The key under which a call is kept, and what is known of it; it counts as asked for from now on.

        Calls of one scope are told apart by their order. Where that is not the program's own, as with workers
        that take from a queue, a call of the same name and arguments that nobody has asked for is the one that is
        meant. Without such a one, whatever stands at the call's place is: its arguments have changed. Once the
        order is seen to have changed, it is a new call instead.
        """
        record, (name, number) = self._records.get(key), named(key)
        if args is None or not number:
            return key, self.find(key)  # a chosen key is exact
        taken, mixed = key in self._asked, name in self._mixed
        other = record is not None and record.body.get("args") not in (None, args)
        if taken or other or (mixed and record is None):
            like = self._unasked_like(name, args)
            if like is not None:
                self._mixed.add(name)
                return like, self.find(like)
            if taken or (other and mixed):
                key = next(fresh for n in count(1) if (fresh := f"{key}+{n}") not in self._records)
        return key, self.find(key)

    def _unasked_like(self, name: str, args: str) -> str | None:
        if self._alike is None:
            self._alike = {}
            for key, record in self._records.items():
                if (numbered := named(key))[1]:
                    self._alike.setdefault((numbered[0], record.body.get("args")), []).append(key)
        keys = self._alike.get((name, args), [])
        return next((key for key in keys if key not in self._asked and key in self._records), None)

    def has_ended(self, key: str) -> bool:
        """Whether it came to its end before; that does not count as asking for it."""
        record = self._records.get(key)
        return record is not None and record.ended is not None

    def knows_step(self, key: str) -> bool:
        """Whether anything is known of the step with this key as a whole."""
        return key in self._records

    def goes_beyond(self, step: int) -> bool:
        """Whether it holds something of a later step: this one was finished before, and its save was skipped."""
        return any(int(key.partition("/")[0]) > step for key in self._records)

    def seq_of(self, key: str) -> int:
        """The entry of a call that has a result; 0 when there is none."""
        record = self._records.get(key)
        return record.seq if record is not None and record.kind == Kind.CALL and "result" in record.body else 0

    def new_attempt(self, path: str = "") -> None:
        """The attempt of a step, or of the call with that path, has failed: what it had finished stays, its
        failures are tried again.

        A failure that leaves in doubt whether the call was done becomes what an intent alone is.
        """
        for key, record in list(self._records.items()):
            if record.ended in ("result", None) or not key.startswith(path):
                continue
            if record.in_doubt:
                body: dict[str, Any] = {name: record.body.get(name) for name in _OF_AN_INTENT}
                self._records[key] = Record(key, Kind.INTENT, record.seq, body)
            else:
                del self._records[key]
                self._failed.add(key)
        self._tried = {key for key in self._tried if not key.startswith(path)}
        self.begin_again(path)
        self.replays = True

    def tried(self, path: str) -> int:
        """How many attempts of the call with that path had failed when the one that was cut off, or let go, began."""
        return max(
            (self._records[key].body.get("tried", 0) for key in self._tried if self._goes_on(key, path)), default=0
        )

    def _goes_on(self, key: str, path: str) -> bool:
        """Whether it was last seen under way, or failed, in the function of the call itself or in a task of it."""
        record = self._records.get(key)
        if record is None or record.ended == "result" or not key.startswith(path):
            return False
        return all("(" in task for task in key[len(path) :].split("/")[:-1])

    def failed_before(self, key: str) -> bool:
        """Whether an attempt that has failed saw this fail."""
        return key in self._failed

    def begin_again(self, path: str = "") -> None:
        """The body, or the function of the call with that path, runs from its top once more."""
        self._asked = {key for key in self._asked if not key.startswith(path)} if path else set()
        self._alike = None
        self._before |= self._reached.keys()
        self._reached = {at: n for at, n in self._reached.items() if not at.startswith(path)} if path else {}

    def unasked(self, step: int) -> list[str]:
        """The keys of what this step had done before and did not ask for this time."""
        return [key for key in self._of_step(step) if key not in self._asked and not self._covered(key)]

    def finish(self, step: int) -> None:
        """The step is done: its calls are not needed any more."""
        for key in self._of_step(step):
            del self._records[key]
        self._steps.pop(str(step), None)
        self._tried &= self._records.keys()
        for path in [path for path in self._chunks if path.startswith(f"{step}/")]:
            del self._chunks[path]
        self.begin_again()
        self._before &= self._chunks.keys()
        self._mixed.clear()
        self.replays = bool(self._records)
        self._alike = None

    def _of_step(self, step: int) -> list[str]:
        return [key for key in self._records if key.startswith(f"{step}/")]

    def _covered(self, path: str, below: str = "") -> bool:
        """Whether it lies inside a call, or a step, that has ended, so that nobody needs to ask for it.

        With `below` only calls count that lie there.
        """
        whole = self._records.get(self._steps.get(path.partition("/")[0], ""))
        if whole is not None and whole.ended is not None and not below:
            return True
        while "/" in path:
            path = path.rpartition("/")[0]
            if len(path) < len(below):
                return False
            record = self._records.get(path)
            if record is not None and record.ended is not None:
                return True
        return False

    def carried(self) -> list[tuple[str, int, dict[str, Any]]]:
        """Everything that a checkpoint must repeat so that the log before it is not needed."""
        records = [(r.kind, r.seq, r.body) for r in self._records.values()]
        chunks = [
            (Kind.EMITTED.value, chunk.seq, {"name": chunk.what[0], "data": chunk.what[1], "path": path})
            for path, chunks in self._chunks.items()
            for chunk in chunks
        ]
        return [*records, *chunks]

    def results(self) -> list[tuple[str, int, dict[str, Any]]]:
        """What has come to its end, for a run that goes on elsewhere with it."""
        return [(r.kind, r.seq, r.body) for r in self._records.values() if r.ended is not None]

    def open_waits(self) -> list[Record]:
        """The waits that nothing has ended yet."""
        return [r for r in self._records.values() if r.kind == Kind.WAIT and r.ended is None]

    @property
    def records(self) -> list[Record]:
        """All of them, in the order of their first entry."""
        return list(self._records.values())

    # Streams

    def emits(self, path: str, name: str, data: Tree) -> tuple[Chunk | None, list[int]]:
        """The chunk to write, if it is not in the log already, and the seqs of those that it supersedes.

        A body that runs again emits again. What comes out the same is there already; from the first
        difference on, what the attempt before had emitted is superseded.
        """
        chunks, place = self._chunks.setdefault(path, []), self._reached.get(path, 0)
        self._reached[path] = place + 1
        if place < len(chunks) and canonical(list(chunks[place].what)) == canonical([name, data]):
            return None, []
        gone = [chunk.seq for chunk in chunks[place:]]
        chunk = Chunk(0, (name, data))
        chunks[place:] = [chunk]
        return chunk, gone

    def left_over(self, step: int) -> list[int]:
        """The seqs of chunks that an earlier attempt of this step emitted and the one that finished did not."""
        return [
            chunk.seq
            for path, chunks in self._chunks.items()
            if path.startswith(f"{step}/") and not self._covered(path)
            for chunk in chunks[self._reached.get(path, 0) :]
        ]

    def left_below(self, path: str) -> list[int]:
        """The same of the call with that path, which has ended."""
        return [
            chunk.seq
            for at in self._before
            if at.startswith(path) and not self._covered(at, path)
            for chunk in self._chunks.get(at, ())[self._reached.get(at, 0) :]
        ]


class Chunk(msgspec.Struct, gc=False):
    """One emitted chunk; `seq` is 0 until it is written."""

    seq: int
    what: tuple[str, Any]


_KEYED = RESULT_KINDS | {Kind.INTENT, Kind.WAIT}
_KEPT = _KEYED | {Kind.EMITTED, Kind.SUPERSEDED}
