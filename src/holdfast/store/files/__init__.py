"""A store in plain files: a folder per run, with a log of JSON lines that a person can read."""

from holdfast.store.files.store import FilesStore

__all__ = ["FilesStore"]
