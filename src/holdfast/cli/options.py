"""The options that several commands share, and how their values are read."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec

from holdfast.cli.explaining import Typed
from holdfast.engine.verbs import MISSING
from holdfast.errors import UsageError

_NUMBER = re.compile(r"-[0-9.][0-9.eE+-]*")

F = TypeVar("F", bound=Callable[..., Any])


def store_option(command: F) -> F:
    """--store URL"""
    return click.option(
        "--store",
        metavar="URL",
        callback=keep_store,
        help="Where the runs are: sqlite:FILE, file:FOLDER, postgresql://…, redis://… or the path of a database.  "
        "[$HOLDFAST_STORE, .holdfast/runs.db]",
    )(command)


def typed() -> Typed:
    """What has been typed so far of the command that is under way."""
    return click.get_current_context().ensure_object(Typed)


def keep_store(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """Remember the store that was typed, for what is suggested."""
    context.ensure_object(Typed).store = value
    return value


def json_option(command: F) -> F:
    """--json"""
    return click.option("--json", "json_", is_flag=True, help="Print JSON, in a shape that stays.")(command)


def app_option(command: F) -> F:
    """--app FILE[:FLOW]"""
    return click.option(
        "--app",
        metavar="FILE[:FLOW]",
        envvar="HOLDFAST_APP",
        help="The Python file or module that has the flow.  [$HOLDFAST_APP]",
    )(command)


def meta_option(text: str) -> Callable[[F], F]:
    """--meta KEY=VALUE, several times"""
    return click.option("--meta", metavar="KEY=VALUE", multiple=True, help=text)


def where(store: str | None) -> Any:
    """The store for a Runtime: what was asked for, or the default."""
    return MISSING if store is None else store


def read_meta(pairs: Sequence[str]) -> dict[str, Any] | None:
    """Keys and values. A value that is a JSON number, boolean or null is that; anything else is a text."""
    found: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = read_text(pair).partition("=")
        if not equals or not key:
            raise UsageError(f"--meta {pair!r}: write it as KEY=VALUE")
        try:
            value = msgspec.json.decode(text)
        except msgspec.DecodeError:
            value = text
        found[key] = text if isinstance(value, (dict, list)) else value
    return found or None


def read_json(text: str, option: str) -> Any:
    """The JSON of an option: the text itself, `-` for stdin, `@FILE` for a file."""
    try:
        if text == "-":
            data = sys.stdin.buffer.read()
        elif text.startswith("@"):
            data = Path(text[1:]).read_bytes()
        else:
            data = os.fsencode(text)
        return msgspec.json.decode(data)
    except OSError as error:
        raise UsageError(f"{option} {text}: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        shown = text if len(text) <= 60 else f"{text[:57]}..."
        example = f"""{option} '{{"topic": "tides"}}'"""
        raise UsageError(f"{option} {shown}: {error}. Give JSON ({example}), @FILE, or - for stdin") from error


class WithValue(click.Command):
    """A command that takes a value: a negative number is one, anything else that begins with - goes behind --."""

    ignore_unknown_options = True

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        options = {name: one for one in self.get_params(ctx) if isinstance(one, click.Option) for name in one.opts}
        left = iter(args)
        for argument in left:
            if argument == "--":
                break
            name, attached = argument[:2], argument[2:]
            if name == "--":
                name, attached, _ = argument.partition("=")
            if name in options:
                if not attached and not options[name].is_flag:
                    next(left, None)  # what follows is its value, whatever that begins with
            elif argument.startswith("-") and argument != "-" and not _NUMBER.fullmatch(argument):
                message = f"No such option: {argument}. What begins with - and is no option goes behind --"
                raise click.UsageError(message, ctx)
        return super().parse_args(ctx, args)


def read_value(text: str) -> tuple[Any, str]:
    """A value and the text it was read from: JSON if it is that, else the text. `-` stands for stdin."""
    try:
        data = sys.stdin.buffer.read() if text == "-" else os.fsencode(text)
        plain = data.decode().removesuffix("\n") if text == "-" else data.decode()
    except OSError as error:
        raise UsageError(f"{text}: stdin cannot be read: {error.strerror}") from error
    except UnicodeDecodeError:
        raise UsageError(f"{text!r} is not UTF-8") from None
    try:
        return msgspec.json.decode(data), plain
    except RecursionError:
        raise UsageError("the value is nested too deeply") from None
    except (msgspec.DecodeError, UnicodeError):
        return plain, plain


def read_text(argument: str) -> str:
    """The argument as UTF-8, whatever the locale took it for."""
    try:
        return os.fsencode(argument).decode()
    except UnicodeDecodeError:
        raise UsageError(f"{argument!r} is not UTF-8") from None
