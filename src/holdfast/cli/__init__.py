"""The command line: `holdfast`, or `python -m holdfast`."""
