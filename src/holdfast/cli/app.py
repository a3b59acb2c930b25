"""The group of commands, and what becomes of an error: one line, a documented exit code, no traceback."""

from __future__ import annotations

import logging
import os
import sys
import traceback
from collections.abc import Sequence

import click

from holdfast import __version__
from holdfast.cli import demo, driving, reading, steering
from holdfast.cli.codes import Exit, code_of, table
from holdfast.cli.output import as_json, error_object, message_of, out, prepare, say, shown
from holdfast.errors import HoldfastError, UsageError

_EPILOG = f"""\b
Exit codes:
{table()}

\b
The store is --store, else $HOLDFAST_STORE, else .holdfast/runs.db. A run is named RUN,
one of its checkpoints RUN@SEQ. $HOLDFAST_APP is the default of --app."""


class _InOrder(click.Group):
    """Lists the commands as they were added, not by the alphabet."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


@click.group(
    cls=_InOrder, epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110}
)
@click.version_option(__version__, prog_name="holdfast")
def holdfast() -> None:
    """Runs that survive kill -9 and go on from their last finished step."""


for _command in (
    demo.demo,
    driving.run,
    reading.ls,
    reading.show,
    driving.resume,
    driving.rewind,
    steering.pause,
    steering.cancel,
    driving.fork,
    reading.doctor,
):
    holdfast.add_command(_command)


class _OneLine(logging.Handler):
    """What the runtime warns of, as lines on stderr."""

    def emit(self, record: logging.LogRecord) -> None:
        say(shown(record.getMessage()))
        if record.exc_info and _debugging():
            traceback.print_exception(record.exc_info[1])


def execute(arguments: Sequence[str]) -> int:
    """Do what the arguments say; the exit code. Nothing is raised."""
    prepare()
    log = logging.getLogger("holdfast")
    if not log.handlers:
        log.addHandler(_OneLine())
    try:
        try:
            # Not holdfast.main(): that has exit codes of its own for what is caught below.
            with holdfast.make_context("holdfast", list(arguments) or ["--help"]) as context:
                code = holdfast.invoke(context)
        except click.exceptions.Exit as error:
            code = error.exit_code
        except HoldfastError as error:
            code = _fail(error, code_of(error), arguments)
        except click.ClickException as error:
            code = _fail(UsageError(error.format_message()), Exit.USAGE, arguments)
        sys.stdout.flush()
        return int(code or Exit.OK)
    except BrokenPipeError:
        _give_stdout_up()
        return Exit.PIPE
    except OSError as error:
        _give_stdout_up()
        _explain(f"the output could not be written: {error.strerror or error}")
        return Exit.OUTPUT
    except (KeyboardInterrupt, click.Abort):
        _explain("interrupted")
        return Exit.INTERRUPTED
    except Exception as error:
        _explain(f"unexpected {type(error).__name__}: {error}. HOLDFAST_DEBUG=1 shows where; please report it.")
        return Exit.BUG


def _fail(error: HoldfastError, code: Exit, arguments: Sequence[str]) -> Exit:
    if "--json" in arguments:
        out(as_json({"error": error_object(error, code)}))
    _explain(message_of(error))
    return code


def _explain(message: str) -> None:
    if _debugging():
        traceback.print_exc()
    say(f"holdfast: {shown(message)}")


def _debugging() -> bool:
    return os.environ.get("HOLDFAST_DEBUG", "") not in ("", "0")


def _give_stdout_up() -> None:
    """Whatever is left in the buffer has nowhere to go: keep the interpreter from trying again at its end."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError:
        pass
