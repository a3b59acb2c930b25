"""One run's folder: its log and its inbox, and what this process knows of them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TypeVar

import msgspec

from holdfast.core.record import Ledger
from holdfast.errors import StoreDamagedError
from holdfast.model import Commit, Entry, Head, Mail
from holdfast.store.files import lines
from holdfast.store.files.disk import Disk, NotPlainError, Stamp, stamp
from holdfast.store.files.lines import LogLine, MailLine
from holdfast.store.files.reader import BrokenLineError, LineFile

LOG, INBOX = "log.jsonl", "inbox.jsonl"

_log_lines = msgspec.json.Decoder(LogLine)
_mail_lines = msgspec.json.Decoder(MailLine)
L = TypeVar("L")
Stamps = tuple[Stamp | None, Stamp | None]


class RunFolder:
    """What is known of one run. Each method is given the run's open and locked folder."""

    def __init__(self, run: str, disk: Disk) -> None:
        self.run = run
        self._disk = disk
        self._log, self._inbox = LineFile(run, LOG), LineFile(run, INBOX)
        self.forget()

    def forget(self) -> None:
        """Know nothing, so that everything is read again."""
        self._log.forget()
        self._inbox.forget()
        self.begun = False  # whether the log's first line was read, which has the head
        self.ledger = Ledger(Head(id=self.run, flow="", status=""))
        self._letters = 0  # how many pieces of mail the inbox holds, taken ones included
        self._lines: list[tuple[int, int, str]] = []  # last seq, offset and checksum before, of lines with entries
        self._damage: tuple[Stamps, StoreDamagedError] | None = None

    def torn(self, file: str) -> int:
        """How many bytes of an unfinished write stand at the end of the log or of the inbox."""
        return (self._log if file == LOG else self._inbox).torn

    def is_current(self, folder: int) -> bool:
        """Whether nothing was written since `catch_up`. May be asked without the lock."""
        with self._damage_named():
            return self.begun and self._log.is_current(folder) and self._inbox.is_current(folder)

    # Reading

    def catch_up(self, folder: int) -> None:
        """Read what was written since the last time. Raises StoreDamagedError."""
        if self.is_current(folder):
            return
        if self._damage is not None and self._damage[0] == self._stamps(folder):
            raise self._damage[1]  # a large log is not read again and again only to find the same
        try:
            self._read(folder)
        except StoreDamagedError as error:
            self._damage = (self._stamps(folder), error)
            raise

    def _stamps(self, folder: int) -> Stamps:
        with self._damage_named():
            return stamp(folder, LOG), stamp(folder, INBOX)

    def _read(self, folder: int) -> None:
        with self._damage_named():
            if not self.begun or self._log.was_replaced(folder) or self._inbox.was_replaced(folder):
                self.forget()
            try:
                self._read_new(folder)
            except BrokenLineError:
                # Another file may have got the inode of the old one: only reading all of it tells.
                self.forget()
                self._read_new(folder)

    def _read_new(self, folder: int) -> None:
        # The inbox first: a line of the log takes only mail that was posted before it.
        self._inbox.read_new(folder, self._take_mail)
        self._log.read_new(folder, self._take_line)
        if not self.begun:
            raise BrokenLineError(LOG, "its first line is missing")

    def _take_mail(self, payload: bytes, offset: int, before: str) -> None:
        line = _decoded(_mail_lines, payload, INBOX)
        mail = lines.mail_of(line)
        if mail is None:
            self.ledger.last_mail = line.id
            self.ledger.used.update(line.used)
        else:
            self.ledger.receive(mail)
            self._letters += 1

    def _take_line(self, payload: bytes, offset: int, before: str) -> None:
        line = _decoded(_log_lines, payload, LOG)
        if line.head is not None and not self.begun and line.head.id == self.run:
            first = line.entries[0].seq if line.entries else 1
            self.ledger.head = lines.head_of(line.head, seq=first - 1)
            self.ledger.first = first
            self.begun = True
        elif line.head is not None or not self.begun:
            raise BrokenLineError(LOG, "it does not begin with the head of this run")
        ledger = self.ledger
        if line.inbox is not None:
            mark = line.inbox
            ledger.inbox = [mail for mail in ledger.inbox if mail.id > mark.last or mail.id in mark.waiting]
        if line.claim is not None:
            ledger.take_over(line.claim)
        seqs = [text.seq for text in line.entries]
        if seqs != list(range(ledger.head.seq + 1, ledger.head.seq + 1 + len(seqs))):
            raise BrokenLineError(LOG, "its entries do not follow each other")
        if seqs:
            self._lines.append((seqs[-1], offset, before))
        ledger.apply(lines.commit_of(self.run, line))

    def read_entries(
        self, folder: int, after: int = 0, upto: int | None = None, limit: int | None = None
    ) -> list[Entry]:
        """The entries with after < seq <= upto; at most the first `limit`. Raises StoreDamagedError."""
        start = bisect_left(self._lines, after + 1, key=lambda line: line[0])
        end = self.ledger.head.seq if upto is None else min(upto, self.ledger.head.seq)
        if limit is not None:
            end = min(end, max(after, self.ledger.first - 1) + limit)  # seqs have no gaps
        found: list[Entry] = []
        if start == len(self._lines) or end <= after:
            return found
        _, offset, check = self._lines[start]
        with self._damage_named():
            for payload in self._log.read_from(folder, offset, check):
                texts = _decoded(_log_lines, payload, LOG).entries
                found += [lines.entry_of(text) for text in texts if after < text.seq <= end]
                if texts and texts[-1].seq >= end:
                    break
        return found

    # Writing

    def write_commits(self, folder: int, commits: Sequence[Commit], after: Ledger) -> None:
        """Write accepted commits; `after` is the run as they leave it."""
        if any(commit.rebase for commit in commits):
            self._rewrite(folder, commits, after)
        else:
            self._append_line(folder, lines.commit_line(commits), after, "commit")

    def write_claim(self, folder: int, after: Ledger) -> None:
        """Write that the run was claimed; `after` is the run as that leaves it."""
        assert after.head.owner is not None
        line = LogLine(claim=after.head.owner, fence=after.head.fence)
        self._append_line(folder, line, after, "claim")

    def _append_line(self, folder: int, line: LogLine, after: Ledger, point: str) -> None:
        data, check = lines.seal(line, self._log.check)
        with self._forgotten_on_failure():
            to = self._disk.append(folder, LOG, data, self._log.good, point)
        if line.entries:
            self._lines.append((after.head.seq, self._log.good, self._log.check))
        self._log.moved_on(to, check)
        self.ledger = after

    def write_mail(self, folder: int, mail: Mail) -> None:
        """Put stamped mail into the inbox."""
        data, check = lines.seal(lines.mail_line(mail), self._inbox.check)
        with self._forgotten_on_failure():
            to = self._disk.append(folder, INBOX, data, self._inbox.good, "mail")
        self._inbox.moved_on(to, check)
        self.ledger.receive(mail)
        self._letters += 1

    def _rewrite(self, folder: int, commits: Sequence[Commit], after: Ledger) -> None:
        """Write the log anew from its new first entry on, and then the inbox without what was taken."""
        log = self.new_log(commits, after, self.read_entries(folder))
        with self._forgotten_on_failure():
            self._disk.replace(folder, LOG, log, "commit")
        if self._letters > len(after.inbox):
            known = MailLine(after.last_mail, used=sorted(after.used))
            inbox = [known, *(lines.mail_line(mail) for mail in after.inbox)]
            # The log is on the disk and says what was taken, so it does no harm if this fails.
            with suppress(OSError):
                self._disk.replace(folder, INBOX, lines.seal_all(inbox, self._inbox.first_check), "inbox")
        self.forget()

    def new_log(self, commits: Sequence[Commit], after: Ledger, kept: list[Entry]) -> bytes:
        """A whole log, of a new run or of one whose entries so far are `kept`, as the commits leave it."""
        if not any(commit.rebase for commit in commits):
            return lines.seal_all([lines.commit_line(commits)], self._log.first_check)
        for commit in commits:
            kept += commit.entries
            if commit.rebase is not None:
                kept = [commit.rebase, *(entry for entry in kept if entry.seq > commit.rebase.seq)]
        mark = lines.InboxMark(after.last_mail, [mail.id for mail in after.inbox])
        first = LogLine(head=lines.head_text(after.head), inbox=mark, entries=[lines.entry_text(kept[0])])
        rest = (LogLine(entries=[lines.entry_text(entry)]) for entry in kept[1:])
        return lines.seal_all([first, *rest], self._log.first_check)

    # Errors

    @contextmanager
    def _forgotten_on_failure(self) -> Iterator[None]:
        """When a write failed, nobody knows what stands in the file: read it again."""
        try:
            with self._damage_named():
                yield
        except BaseException:
            self.forget()
            raise

    @contextmanager
    def _damage_named(self) -> Iterator[None]:
        try:
            yield
        except BrokenLineError as error:
            seq = self.ledger.head.seq + 1 if error.file == LOG else None
            raise StoreDamagedError(self.run, seq, str(error)) from None
        except NotPlainError as error:
            raise StoreDamagedError(self.run, None, str(error)) from None


def _decoded(decoder: msgspec.json.Decoder[L], payload: bytes, file: str) -> L:
    try:
        return decoder.decode(payload)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise BrokenLineError(file, f"a line cannot be read ({error})") from error
