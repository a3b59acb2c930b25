"""The command `holdfast`, outside of the package: loading that takes a moment, and Ctrl-C may come in it."""

from __future__ import annotations

import sys


def main() -> None:
    """Do what the arguments of this process say, and end it with the exit code that is documented for that."""
    try:
        from holdfast.cli.app import execute

        code = execute(sys.argv[1:])
    except KeyboardInterrupt:  # before anything was under way
        code = 130
    sys.exit(code)
