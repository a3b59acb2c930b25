"""The commands that talk with a run: asks, answer, send. None of them needs the program."""

from __future__ import annotations

import asyncio
from typing import Any

import click

from holdfast.cli.accepted import brief, in_short
from holdfast.cli.codes import Exit
from holdfast.cli.explaining import Typed
from holdfast.cli.options import WithValue, json_option, read_text, read_value, store_option, typed, where
from holdfast.cli.output import as_json, out, print_fields, say, shown, time_of
from holdfast.core.ids import check_id
from holdfast.errors import AnswerError
from holdfast.model import Ask, Run, RunStatus
from holdfast.runtime import Runtime


@click.command()
@click.argument("run", metavar="[RUN]", required=False)
@store_option
@json_option
def asks(run: str | None, store: str | None, json_: bool) -> Exit:
    """List the questions that are open, of one run or of all, and how each is answered.

    --json: one JSON object per line.
    """
    if run is not None:
        check_id(run)
    found = asyncio.run(_asks(store, run))
    if not found and not json_:
        say("no open questions" if run is None else f"{run} asks nothing")
    several = {ask.run for ask in found if sum(other.run == ask.run for other in found) > 1}
    for number, ask in enumerate(found):
        if json_:
            out(as_json(ask))
        else:
            if number:
                out("")
            _print_ask(ask, typed(), several=ask.run in several)
    return Exit.OK


async def _asks(store: str | None, run: str | None) -> list[Ask]:
    async with Runtime(where(store), create=False) as runtime:
        return [ask async for ask in runtime.asks(run, raw=True)]


def _print_ask(ask: Ask, typed: Typed, *, several: bool) -> None:
    facts: list[tuple[str, object]] = [("question", ask.question), ("run", f"{ask.run} ({ask.flow})"), ("ask", ask.id)]
    if ask.data is not None:
        facts.append(("data", brief(ask.data)))
    facts += [("takes", in_short(ask.schema)), ("since", f"{time_of(ask.asked_at)} UTC")]
    if ask.expires_at is not None:
        facts.append(("until", f"{time_of(ask.expires_at)} UTC"))
    if ask.unread:
        facts.append(("unread", "something has come for the run that it has not taken in yet; it may be the answer"))
    command = typed.line("answer", ask.run, "VALUE", options=("--ask", ask.id) if several else ())
    print_fields([*facts, ("answer", command)])


@click.command(cls=WithValue)
@click.argument("run", metavar="RUN")
@click.argument("value", metavar="VALUE")
@click.option("--ask", "ask", metavar="ID", help="Which question, when several are open; `asks` lists them.")
@store_option
@json_option
def answer(run: str, value: str, ask: str | None, store: str | None, json_: bool) -> Exit:
    """Answer the question that a run waits with. The first answer counts.

    VALUE is JSON, else a text: true, 5, '{"done": false}', yes. One that is JSON but fits only as a text is taken as
    the text. - reads it from stdin; one that begins with - and is no number goes behind --.
    """
    check_id(run)
    given, text = read_value(value)
    which = None if ask is None else read_text(ask)
    answered, taken, found = asyncio.run(_answer(store, run, given, text, which))
    if json_:
        out(as_json({"run": found, "ask": answered, "value": taken}))
    else:
        out(f"{run} has its answer (ask {shown(answered)}): {shown(brief(taken))}")
        _say_how_it_goes_on(found)
    return Exit.OK


async def _answer(store: str | None, run: str, given: Any, text: str, which: str | None) -> tuple[str, Any, Run | None]:
    async with Runtime(where(store), create=False) as runtime:
        taken = given
        try:
            answered = await runtime.answer(run, given, ask=which)
        except AnswerError as error:
            try:
                if given == text:
                    raise
                # 42 for a question that takes a text: the schema tells what was meant.
                answered, taken = await runtime.answer(run, text, ask=which), text
            except AnswerError:
                raise await _explained(runtime, run, which, error) from None
        return answered, taken, await runtime.get(run)


async def _explained(runtime: Runtime, run: str, which: str | None, error: AnswerError) -> AnswerError:
    """The same with what the question takes in short."""
    found = [ask async for ask in runtime.asks(run, raw=True) if which in (None, ask.id)]
    return AnswerError(error.path, error.problem, in_short(found[0].schema)) if len(found) == 1 else error


@click.command(cls=WithValue)
@click.argument("run", metavar="RUN")
@click.argument("topic", metavar="TOPIC")
@click.argument("value", metavar="[VALUE]", required=False)
@store_option
@json_option
def send(run: str, topic: str, value: str | None, store: str | None, json_: bool) -> Exit:
    """Send a message to a run, for its receive(TOPIC), now or later.

    VALUE is JSON, else a text; left out, it is null. - reads it from stdin; one that begins with - and is no number
    goes behind --.
    """
    check_id(run)
    name = read_text(topic)
    data = None if value is None else read_value(value)[0]
    found = asyncio.run(_send(store, run, name, data))
    if json_:
        out(as_json({"run": found, "topic": name, "value": data}))
    else:
        out(f"{run} has a message on {shown(repr(name))}: {shown(brief(data))}")
        _say_how_it_goes_on(found)
    return Exit.OK


async def _send(store: str | None, run: str, topic: str, data: Any) -> Run | None:
    async with Runtime(where(store), create=False) as runtime:
        await runtime.send(run, topic, data)
        return await runtime.get(run)


def _say_how_it_goes_on(run: Run | None) -> None:
    """Where nobody may be alive to take it in, say what does."""
    if run is None or run.status == RunStatus.RUNNING:
        return
    again = typed().command("resume", run.id)
    if run.status == RunStatus.WAITING:
        say(f"it goes on where a program looks after it; {shown(again)} does it here")
    else:
        say(f"it is {run.status}; {shown(again)} goes on with it")
