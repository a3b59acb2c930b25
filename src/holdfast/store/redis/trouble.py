"""What the driver and the server complain of, told as errors of ours: one line that says what to do next."""

from __future__ import annotations

import os
import re
import socket
import ssl
from typing import Literal

import redis
from redis.exceptions import NoPermissionError

from holdfast.errors import StoreDamagedError, StoreUnavailableError
from holdfast.store.redis.address import Address
from holdfast.store.strangers import is_redis

# Told by their words: the driver and servers of several versions wrap these in errors of several kinds.
_NOT_LET_IN = re.compile(r"NOAUTH|WRONGPASS|Authentication required|invalid username-password pair")
_REFUSED = re.compile(r"\b(OOM|MISCONF|READONLY|NOREPLICAS|LOADING|BUSY|MASTERDOWN|NOPERM)\b")
_NO_DATABASE = re.compile(r"DB index|not an integer or out of range|SELECT is not allowed")


class translated:
    """A context that turns the driver's errors into ours, with the original as the cause."""

    __slots__ = ("_where",)

    def __init__(self, where: str) -> None:
        self._where = where

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> Literal[False]:
        if isinstance(error, redis.RedisError | OSError):
            raise told(self._where, error) from error
        return False


def told(where: str, error: redis.RedisError | OSError) -> StoreUnavailableError | StoreDamagedError:
    """The error of ours for one of the driver's."""
    text = str(error)
    if isinstance(error, redis.AuthenticationError) or _NOT_LET_IN.search(text):
        return StoreUnavailableError(f"{where} does not accept the user or the password. Name others in the URL.")
    if isinstance(error, redis.ResponseError) and "WRONGTYPE" in text:
        return StoreDamagedError(None, None, f"{where}: a key of the store is of another type")
    refused = NoPermissionError | redis.ReadOnlyError | redis.OutOfMemoryError | redis.BusyLoadingError
    if isinstance(error, refused) or (isinstance(error, redis.ResponseError) and _REFUSED.search(text)):
        return StoreUnavailableError(f"{where} refused it, and nothing was written: {text}")
    if isinstance(error, redis.ResponseError):
        return StoreUnavailableError(f"{where} answered with an error: {text}. `holdfast doctor` looks for damage.")
    return StoreUnavailableError(
        f"{where} cannot be reached, or the connection was lost: {text.rstrip('.')}. What was under way may have "
        f"happened or not, and is not counted as done; see that the server is up, then run it again."
    )


def not_reached(address: Address, error: redis.RedisError | OSError) -> StoreUnavailableError | StoreDamagedError:
    """Why the first thing that was asked of a server was not answered, and what to do about it."""
    where, text = address.shown, str(error)
    if _NO_DATABASE.search(text):
        return StoreUnavailableError(
            f"{where}: the server has no database of this number. Name another one in the URL: its setting `databases` "
            f"says how many there are, 16 if nobody has changed it, and the first is 0."
        )
    answered = redis.ResponseError | redis.AuthenticationError | redis.BusyLoadingError
    if isinstance(error, answered) or _NOT_LET_IN.search(text):
        return told(where, error)
    advice = "Start the server, or check the URL"
    if address.tls is not None:
        advice += ": host and port, that TLS is spoken there (redis:// is without), and the files of the ssl_ options"
    elif not address.url.startswith("unix:"):
        advice += ": host and port, and that Redis listens there, without TLS (rediss:// is with it)"
    return StoreUnavailableError(f"{where} cannot be reached: {_reason(error)}. {advice}.")


def not_tls(where: str, answer: bytes) -> StoreUnavailableError | None:
    """What is wrong where a server of which TLS was asked answers a line of text."""
    if not is_redis(answer):
        return None
    return StoreUnavailableError(f"{where} does not speak TLS there. Write redis:// in the URL, or name its TLS port.")


def _reason(error: BaseException) -> str:
    """What the system said, where the driver has only wrapped it."""
    inner: BaseException | None = error
    while inner is not None:
        if isinstance(inner, ssl.SSLError | socket.gaierror):  # whose numbers are not those of the system
            return str(inner.strerror)
        if isinstance(inner, OSError) and inner.errno is not None:
            return os.strerror(inner.errno)
        inner = inner.__cause__ or inner.__context__
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__
