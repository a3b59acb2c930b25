"""Everything for code without an event loop.

For programs, the runtime: each method waits for its result. A thread of its own runs the event loop, so live
runs go on while the program does something else.

    from holdfast.blocking import Runtime

    with Runtime("sqlite:runs.db") as rt:
        rt.run(report, {"topic": "tides"}, id="r1")

For `def` bodies inside a run, the verbs: call, ask, receive, sleep, spawn, emit, progress.
"""

from holdfast.blocking.face import RunHandle, Runtime
from holdfast.blocking.script import handing_back_on_signals, run
from holdfast.blocking.verbs import Child, ask, call, receive, sleep, spawn
from holdfast.emitting import emit, progress

__all__ = [
    "Child",
    "RunHandle",
    "Runtime",
    "ask",
    "call",
    "emit",
    "handing_back_on_signals",
    "progress",
    "receive",
    "run",
    "sleep",
    "spawn",
]
