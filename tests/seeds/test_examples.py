"""The examples run, can be killed, and go on when they are run again."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import warm
from holdfast.blocking import Runtime
from warm import WarmPopen

EXAMPLES = Path(__file__).parents[2] / "examples"


# What runs undisturbed need not take its time; what is to be killed must still be at it when the kill comes.
AT_ONCE = {"SECONDS_PER_CALL": "0", "SECONDS_PER_WORD": "0.005"}
SLOWLY = {"SECONDS_PER_CALL": "0.15", "SECONDS_PER_WORD": "0.02"}


def run(name: str, *arguments: str, store: str = "") -> str:
    env = os.environ | AT_ONCE | {"HOLDFAST_STORE": store}
    return warm.run(EXAMPLES / name, *arguments, env=env).stdout


def killed(name: str, *arguments: str, store: str, at: str) -> list[str]:
    """What the example printed until the line that begins with `at`, when it was killed."""
    command = [EXAMPLES / name, *arguments]
    env = os.environ | SLOWLY | {"HOLDFAST_STORE": store}
    lines = []
    with WarmPopen(command, stdout=subprocess.PIPE, text=True, env=env) as process:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line.rstrip("\n"))
            if line.startswith(at):
                process.kill()
                break
    assert lines[-1].startswith(at)
    return lines


def done(lines: list[str]) -> list[str]:
    return [line.removeprefix("doing: ") for line in lines if line.startswith("doing: ")]


@pytest.fixture(params=["sqlite", "file"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"{request.param}:{tmp_path / 'runs'}"


@pytest.mark.parametrize("scheme", ["sqlite", "file"])
def test_the_research_task_goes_on_after_a_kill(tmp_path: Path, scheme: str) -> None:
    store = f"{scheme}:{tmp_path / 'runs'}"
    command = [EXAMPLES / "research_task.py", store, "0.2"]
    with WarmPopen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line == "step 2\n":
                process.kill()
                break
    again = run("research_task.py", store, "0")
    assert again.splitlines() == [
        "going on after the last finished step",
        "step 2",
        "step 3",
        "step 4",
        "3 sources on tides, reviewed 2 times",
    ]
    assert run("research_task.py", store, "0").splitlines() == again.splitlines()[-1:]


def test_the_named_steps_pause_resume_and_end(tmp_path: Path) -> None:
    store = f"sqlite:{tmp_path / 'runs.db'}"
    lines = run("named_steps.py", store).splitlines()
    types = [line.split()[0] for line in lines]
    assert types.count("step_failed") == 2
    assert types.count("paused") == 2  # the event, and what the program says of it
    assert lines[-1] == "result: {'night': 1, 'rows': [1, 2, 3], 'published': True}"
    assert run("named_steps.py", store).splitlines() == ["0 interrupted runs taken up", lines[-1]]


def test_the_durable_function_goes_on_behind_the_last_call_that_finished(store: str) -> None:
    killed("durable_function.py", "0.1", store=store, at="doing: looking up split")
    again = run("durable_function.py", "0", store=store).splitlines()
    assert done(again) == ["looking up split", "buying a ticket to porto"]
    assert "no flights to atlantis" in again  # a failure that was caught is raised and caught again
    assert again[-1].startswith("result: ticket porto-")
    assert run("durable_function.py", "0", store=store).splitlines() == again[-1:]


@pytest.mark.parametrize(("answer", "bought"), [({"done": True, "result": "porto-7"}, 0), ({"done": False}, 1)])
def test_the_durable_function_asks_whether_it_has_paid_when_it_was_killed_then(
    store: str, answer: dict[str, object], bought: int
) -> None:
    killed("durable_function.py", "0.1", store=store, at="doing: buying")
    for _ in range(2):
        again = run("durable_function.py", "0", store=store).splitlines()
        assert done(again) == []
        assert any(line.startswith("waiting: an answer to 'Was the call") for line in again)
    with Runtime(store) as rt:
        rt.answer("trip-1", answer)
    last = run("durable_function.py", "0", store=store).splitlines()
    assert done(last) == ["buying a ticket to porto"] * bought
    assert last[-1].startswith("result: ticket porto-" + ("" if bought else "7 "))


def test_the_approval_is_asked_by_one_process_answered_by_another_and_finished_by_a_third(store: str) -> None:
    killed("approval.py", store=store, at="doing: writing a draft")
    lines = run("approval.py", store=store).splitlines()
    assert done(lines) == ["writing a draft"]
    assert lines[-1].startswith('waiting for an answer to "May this be published?')
    with Runtime(store) as rt:
        [question] = rt.asks()
        assert rt.answer("notice-1", True) == question.id
    assert killed("approval.py", store=store, at="doing: publishing") == ["doing: publishing"]
    last = run("approval.py", store=store).splitlines()
    assert last == ["doing: publishing", "result: published at https://example.org/16"]
    assert run("approval.py", store=store).splitlines() == last[-1:]


def test_the_approval_takes_one_answer_and_tells_the_second_so(store: str) -> None:
    run("approval.py", store=store)
    assert run("approval.py", "no", store=store).splitlines() == ["result: thrown away"]
    late = run("approval.py", "yes", store=store).splitlines()
    assert late[0].startswith("cannot answer run notice-1: it is completed")
    assert late[1:] == ["result: thrown away"]


def kept(lines: list[str]) -> dict[str, str]:
    found = (line.removeprefix("kept: ").rstrip(")").split(" (") for line in lines if line.startswith("kept: "))
    return dict(found)


@pytest.mark.parametrize("at", ["kept: fetch 4", "kept: count 2", "doing: write 3"])
def test_the_fan_out_does_nothing_again_that_was_kept(store: str, at: str) -> None:
    before = killed("fan_out.py", "0.2", store=store, at=at)
    again = run("fan_out.py", "0", store=store).splitlines()
    assert again[-1] == "result: chapter 1, chapter 2, chapter 3 from 42 words"
    assert set(done(again)).isdisjoint(kept(before))
    assert len(done(again)) == len(set(done(again)))
    assert {what for what, how in kept(again).items() if how == "found"} >= set(kept(before))
    assert len(kept(again)) == 15
    assert run("fan_out.py", "0", store=store).splitlines() == again[-1:]


def test_the_reader_of_the_stream_ends_with_the_words_of_the_result_though_the_writer_was_killed(store: str) -> None:
    killed("streaming.py", store=store, at="doing: paragraph 2 is written")
    command = [EXAMPLES / "streaming.py", "read"]
    env = os.environ | {"HOLDFAST_STORE": store}
    with WarmPopen(command, stdout=subprocess.PIPE, text=True, env=env) as reader:
        killed("streaming.py", store=store, at="doing: paragraph 3 is written")
        written = run("streaming.py", store=store).splitlines()
        read, _ = reader.communicate(timeout=60)
    lines = read.splitlines()
    assert lines[-1].removeprefix("read: ") == written[-1].removeprefix("result: ")
    seqs = [int(line[:4]) for line in lines[:-1]]
    assert seqs == sorted(set(seqs))
    assert [line[5:] for line in lines if "progress" in line] == [f"progress: {n} of 4" for n in (1, 2, 3, 4)]


TOOLS = {
    "search_manual": "search the manual",
    "look_up_order": "look up the order",
    "read_incidents": "read the incidents",
}


@pytest.mark.parametrize("at", ["doing: classify", "doing: read", "kept: search", "kept: look", "doing: draft"])
def test_the_support_desk_goes_on_at_its_node_and_asks_no_tool_again_that_has_answered(store: str, at: str) -> None:
    before = killed("support_graph.py", store=store, at=at)
    again = run("support_graph.py", store=store).splitlines()
    assert again[-1].startswith("waiting for an answer to 'Send this?")
    kept = {TOOLS[line.removeprefix("kept: ")] for line in before if line.startswith("kept: ")}
    assert kept.isdisjoint(done(again))
    assert len(done(again)) == len(set(done(again)))
    assert set(done(before)) | set(done(again)) == {"classify", *TOOLS.values(), "draft a reply"}
    assert killed("support_graph.py", "yes", store=store, at="doing: send") == ["doing: send the reply"]
    last = run("support_graph.py", store=store).splitlines()
    assert last[0] == "doing: send the reply"
    assert last[1].startswith("result: sent: We are sorry. manual: switch it off and on; order:")
    assert run("support_graph.py", store=store).splitlines() == last[1:]


def test_the_support_desk_sends_nothing_that_is_not_approved_and_draws_itself(store: str) -> None:
    run("support_graph.py", store=store)
    assert run("support_graph.py", "no", store=store).splitlines() == ["result: nothing was sent"]
    assert run("support_graph.py", "picture", store=store).startswith("flowchart TD\n")


KNOWN = ["look up moon", "look up sun", "count words"]


@pytest.mark.parametrize("at", KNOWN)
def test_the_agent_does_nothing_again_that_finished_and_asks_before_it_publishes(store: str, at: str) -> None:
    before = done(killed("recovering_agent.py", store=store, at=f"doing: {at}"))
    lines = run("recovering_agent.py", store=store).splitlines()
    assert set(before + done(lines)) == set(KNOWN)
    # What was under way when it was killed is done again; the two searches are under way together.
    cut_off = before if at == "look up moon" else KNOWN[:2] if at == "look up sun" else ["count words"]
    assert set(before) & set(done(lines)) <= set(cut_off)
    assert lines[-1].startswith("waiting for an answer to 'May essay call publish(")
    last = run("recovering_agent.py", "yes", store=store).splitlines()
    assert done(last) == ["publish tides"]
    assert last[-1] == "result: It is at https://example.org/tides."
    assert run("recovering_agent.py", store=store).splitlines() == last[1:]


def test_the_agent_that_is_killed_while_it_publishes_asks_whether_that_was_done(store: str) -> None:
    run("recovering_agent.py", store=store)
    killed("recovering_agent.py", "yes", store=store, at="doing: publish")
    again = run("recovering_agent.py", store=store).splitlines()
    assert done(again) == []
    assert again[-1].startswith("waiting for an answer to 'Was the call")
    with Runtime(store) as rt:
        rt.answer("essay-1", {"done": True, "result": "https://example.org/tides"})
    last = run("recovering_agent.py", store=store).splitlines()
    assert done(last) == []
    assert last[-1] == "result: It is at https://example.org/tides."


def test_the_agent_is_told_why_it_may_not_publish(store: str) -> None:
    run("recovering_agent.py", store=store)
    last = run("recovering_agent.py", "no", store=store).splitlines()
    assert done(last) == []
    assert last[-1] == "result: It stays unpublished (refused: a person did not allow this call: too short)."


def test_three_workers_share_the_runs_and_one_of_them_is_killed(tmp_path: Path, postgres_url: str) -> None:
    for store in (f"sqlite:{tmp_path / 'runs.db'}", postgres_url):
        command = [sys.executable, str(EXAMPLES / "fleet.py")]
        env = os.environ | {"HOLDFAST_STORE": store, "SECONDS_PER_STEP": "0.02"}
        said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60, env=env).stdout
        # Four processes print at once: a line may begin before another one has ended.
        assert said.count(": packed and shipped") == 12
        assert len(set(re.findall(r"doing: \w+ of \S+ in process", said))) == 24
        assert said.count("kill -9") == 1
