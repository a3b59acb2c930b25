"""The group of commands, and what becomes of an error: one line, a documented exit code, no traceback."""

from __future__ import annotations

import logging
import os
import sys
import traceback
from collections.abc import Callable, Sequence

import click

from holdfast import __version__
from holdfast.cli import demo, driving, reading, steering, talking, working
from holdfast.cli.codes import Exit, code_of, table
from holdfast.cli.explaining import Typed, error_object, message_of, trace_of
from holdfast.cli.output import OutputError, as_json, debugging, finish, out, prepare, say, say_trace, shown
from holdfast.errors import HoldfastError, OwnershipLostError, UsageError

_EPILOG = f"""\b
Exit codes:
{table()}

\b
The store is --store, else $HOLDFAST_STORE, else .holdfast/runs.db. A run is named RUN,
one of its checkpoints RUN@SEQ. $HOLDFAST_APP is the default of --app."""


def _print_option(*names: str, what: str, text: Callable[[click.Context], str]) -> click.Option:
    """An option that prints a text as every result is printed, which click's own do not."""

    def show(context: click.Context, parameter: click.Parameter, value: bool) -> None:
        if value and not context.resilient_parsing:
            out(text(context))
            context.exit()

    return click.Option(names, is_flag=True, is_eager=True, expose_value=False, callback=show, help=what)


class _InOrder(click.Group):
    """Lists the commands as they were added, not by the alphabet."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


@click.group(cls=_InOrder, epilog=_EPILOG, context_settings={"help_option_names": [], "max_content_width": 110})
@click.option("--store", metavar="URL", hidden=True)
@click.pass_context
def holdfast(context: click.Context, store: str | None) -> None:
    """Runs that survive kill -9 and go on from their last finished step."""
    # Every command has the option; who writes it before the command means the same.
    context.default_map = {name: {"store": store} for name in holdfast.commands} if store is not None else None


for _command in (
    demo.demo,
    driving.run,
    reading.ls,
    reading.show,
    talking.asks,
    talking.answer,
    talking.send,
    reading.ledger,
    driving.resume,
    driving.rewind,
    steering.pause,
    steering.cancel,
    steering.delete,
    driving.fork,
    working.start,
    working.worker,
    working.workers,
    reading.doctor,
):
    holdfast.add_command(_command)

holdfast.params.append(
    _print_option("--version", what="Show the version and exit.", text=lambda _: f"holdfast, version {__version__}")
)
for _command in (holdfast, *holdfast.commands.values()):
    _command.params.append(
        _print_option("-h", "--help", what="Show this message and exit.", text=click.Context.get_help)
    )


class _OneLine(logging.Handler):
    """What the runtime warns of, as lines on stderr."""

    def emit(self, record: logging.LogRecord) -> None:
        if isinstance(record.args, tuple) and any(isinstance(about, OwnershipLostError) for about in record.args):
            return  # the command that has lost its run says so when it ends
        try:
            say(shown(record.getMessage()))
            if record.exc_info and record.exc_info[1] is not None:
                say_trace(trace_of(record.exc_info[1]))
        except Exception:
            self.handleError(record)  # as every handler does: whoever logs is not to fail by it


def execute(arguments: Sequence[str]) -> int:
    """Do what the arguments say; the exit code. Nothing is raised."""
    prepare()
    typed, code = Typed(), 0
    log = logging.getLogger("holdfast")
    if not log.handlers:
        log.addHandler(_OneLine())
    # What the driver of PostgreSQL warns of is told by our own errors too, in one line; a program that sets logging up
    # gets both.
    logging.getLogger("psycopg").addHandler(logging.NullHandler())
    try:
        try:
            # Not holdfast.main(): that has exit codes of its own for what is caught below.
            with holdfast.make_context("holdfast", list(arguments) or ["--help"], obj=typed) as context:
                code = holdfast.invoke(context) or Exit.OK
        except click.exceptions.Exit as error:
            code = error.exit_code
        except HoldfastError as error:
            code = _fail(error, code_of(error), message_of(error, typed), json="--json" in arguments)
        except click.ClickException as error:
            message = _said_by_click(error)
            code = _fail(UsageError(message), Exit.USAGE, message, json="--json" in arguments)
        finish()
        return int(code)
    except OutputError as error:
        _give_stdout_up()
        if isinstance(error.__cause__, BrokenPipeError):
            return Exit.PIPE
        _explain(f"the output could not be written: {error}")
        return code or Exit.OUTPUT  # what else went wrong says more
    except (KeyboardInterrupt, click.Abort):
        _explain("interrupted")
        return Exit.INTERRUPTED
    except Exception as error:
        _explain(f"unexpected {type(error).__name__}: {error}. HOLDFAST_DEBUG=1 shows where; please report it.")
        return Exit.BUG


def _said_by_click(error: click.ClickException) -> str:
    """Its message; to who names the program behind the run, as `run` takes it, also what would have been right."""
    message = error.format_message()
    context = getattr(error, "ctx", None)
    takes_app = context is not None and any(option.name == "app" for option in context.command.params)
    if takes_app and "unexpected extra argument" in message:
        message += ". The program with the flow is given as --app FILE[:FLOW]"
    return message


def _fail(error: HoldfastError, code: Exit, message: str, *, json: bool) -> Exit:
    if json:
        out(as_json({"error": error_object(error, code, message)}))
    _explain(message)
    return code


def _explain(message: str) -> None:
    if debugging():
        traceback.print_exc()
    say(f"holdfast: {shown(message)}")


def _give_stdout_up() -> None:
    """Whatever is left in the buffer has nowhere to go: keep the interpreter from trying again at its end."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError:
        pass
