"""What of the mail of a run is done with when the run leaves."""

from __future__ import annotations

import pytest

from holdfast.engine.control import Control
from holdfast.model import Mail, RunStatus


class Deaf:
    def notified(self) -> None: ...

    def deliver(self, mail: list[Mail]) -> None: ...


@pytest.mark.parametrize(
    ("status", "settled"),
    [
        (RunStatus.COMPLETED, (1, 2, 3)),
        (RunStatus.FAILED, (1, 2, 3)),
        (RunStatus.CANCELLED, (1, 2, 3)),
        (RunStatus.PAUSED, (1, 3)),  # a cancel that came just then is still to be honoured
        (RunStatus.INTERRUPTED, ()),
        (RunStatus.WAITING, ()),
    ],
)
def test_a_wish_is_done_with_only_when_the_run_leaves_as_it_says(status: RunStatus, settled: tuple[int, ...]) -> None:
    control = Control(Deaf())
    control.deliver([Mail("pause", id=1), Mail("cancel", id=2), Mail("checkpoint", id=3), Mail("riddle", id=4)])
    assert control.settled_by(status) == settled
