"""The commands that ask something of a run from outside: pause, cancel, delete."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import click

from holdfast.cli.codes import Exit
from holdfast.cli.options import json_option, read_text, store_option, where
from holdfast.cli.output import as_json, out
from holdfast.core.ids import check_id
from holdfast.errors import RunNotFoundError
from holdfast.model import Run, RunStatus
from holdfast.runtime import Runtime


@click.command()
@click.argument("run", metavar="RUN")
@store_option
@json_option
def pause(run: str, store: str | None, json_: bool) -> Exit:
    """Pause a run: at its next safe point where it is live, at once where it is not."""
    check_id(run)
    found = asyncio.run(_ask(store, run, lambda runtime: runtime.pause(run)))
    return _report(found, RunStatus.PAUSED, "pause", json_)


@click.command()
@click.argument("run", metavar="RUN")
@click.option("--reason", metavar="TEXT", help="Why; it is kept with the run.")
@store_option
@json_option
def cancel(run: str, reason: str | None, store: str | None, json_: bool) -> Exit:
    """Cancel a run for good: at its next safe point where it is live, at once where it is not."""
    check_id(run)
    why = None if reason is None else read_text(reason)
    found = asyncio.run(_ask(store, run, lambda runtime: runtime.cancel(run, why)))
    return _report(found, RunStatus.CANCELLED, "cancel", json_)


@click.command()
@click.argument("run", metavar="RUN")
@store_option
@json_option
def delete(run: str, store: str | None, json_: bool) -> Exit:
    """Delete a run with all its history. One that is live is refused."""
    check_id(run)
    asyncio.run(_delete(store, run))
    out(as_json({"deleted": run}) if json_ else f"{run} is deleted")
    return Exit.OK


async def _delete(store: str | None, run: str) -> None:
    async with Runtime(where(store), create=False) as runtime:
        if await runtime.get(run) is None:
            raise RunNotFoundError(run)
        await runtime.delete(run)


async def _ask(store: str | None, run: str, verb: Callable[[Runtime], Awaitable[None]]) -> Run | None:
    async with Runtime(where(store), create=False) as runtime:
        await verb(runtime)
        return await runtime.get(run)


def _report(run: Run | None, wanted: RunStatus, verb: str, json: bool) -> Exit:
    if json:
        out(as_json({"run": run}))
    elif run is not None and run.status == wanted:
        out(f"{run.id} is {wanted}")
    elif run is not None:
        out(f"{run.id} is live: the {verb} takes effect at its next safe point")
    return Exit.OK
