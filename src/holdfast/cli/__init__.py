"""The command line: `holdfast`, or `python -m holdfast`."""

from __future__ import annotations

import sys


def main() -> None:
    """Do what the arguments of this process say, and end it with the exit code that is documented for that."""
    from holdfast.cli.app import execute

    sys.exit(execute(sys.argv[1:]))
