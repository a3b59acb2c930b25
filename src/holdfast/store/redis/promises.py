"""What a Redis server promises by its settings, read from it when the store is opened."""

from __future__ import annotations

from typing import Any, NamedTuple

import redis

from holdfast.errors import StoreUnavailableError
from holdfast.store.redis.server import Server


class Promises(NamedTuple):
    """Whether what is committed survives the server, and if not, why."""

    durable: bool
    problems: tuple[str, ...]


async def read_promises(server: Server) -> Promises:
    """What the server's settings come to. Raises StoreUnavailableError where no store can be."""
    where = server.where
    info = await server.greet()
    if str(info.get("cluster_enabled", "0")) == "1":
        raise StoreUnavailableError(
            f"{where}: this is a Redis cluster. The commits of several runs are one script there and their keys are on "
            f"different nodes, so a cluster cannot hold a store: name a single server."
        )
    if info.get("role") in ("slave", "replica"):
        raise StoreUnavailableError(
            f"{where}: this server is a replica of {info.get('master_host')}:{info.get('master_port')} and takes no "
            f"writes. Name the primary."
        )
    names = ("appendonly", "appendfsync", "maxmemory", "maxmemory-policy")
    try:
        given = await server.do("CONFIG GET", "append*") | await server.do("CONFIG GET", "maxmemory*")
        settings = {name: given.get(name) for name in names}
    except StoreUnavailableError as error:  # managed servers often forbid it
        if not isinstance(error.__cause__, redis.ResponseError):
            raise
        settings = {
            "appendonly": "yes" if str(info.get("aof_enabled", "0")) == "1" else "no",
            "appendfsync": None,
            "maxmemory": str(info.get("maxmemory", "0")),
            "maxmemory-policy": info.get("maxmemory_policy"),
        }
    problems = tuple(text for text in (_survival(settings), _eviction(settings)) if text is not None)
    return Promises(not problems, problems)


def _survival(settings: dict[str, Any]) -> str | None:
    advice = "Set `appendonly yes` and `appendfsync always` to keep everything that was acknowledged"
    if settings["appendonly"] != "yes":
        return (
            f"Redis keeps no append-only file (appendonly {settings['appendonly']}): when it dies, all that was "
            f"acknowledged since its last snapshot is lost. {advice}."
        )
    match settings["appendfsync"]:
        case "always":
            return None
        case "everysec":
            return (
                f"Redis flushes once in a second (appendfsync everysec): when its machine dies, up to a second or two "
                f"of acknowledged work is lost, and fences may fall back. {advice}."
            )
        case None:
            return (
                f"whether Redis flushes before it answers (appendfsync) cannot be read: CONFIG GET is not allowed "
                f"here. Unless it is `always`, acknowledged work can be lost when its machine dies. {advice}."
            )
        case other:
            return (
                f"Redis leaves flushing to the system (appendfsync {other}): when its machine dies, many seconds of "
                f"acknowledged work are lost. {advice}."
            )


def _eviction(settings: dict[str, Any]) -> str | None:
    policy = settings["maxmemory-policy"]
    if policy == "noeviction" or settings["maxmemory"] in ("0", 0):
        return None
    if policy is not None and policy.startswith("volatile-"):
        return (
            f"Redis drops keys that expire when memory is short (maxmemory-policy {policy}): the history of an ended "
            f"run with a ttl may go before its time. Set `maxmemory-policy noeviction`."
        )
    return (
        f"Redis drops keys when memory is short (maxmemory-policy {policy}): any part of any run may vanish. Set "
        f"`maxmemory-policy noeviction`."
    )
