"""Runs in a Redis server that a fleet shares."""

from holdfast.store.redis.store import RedisStore

__all__ = ["RedisStore"]
