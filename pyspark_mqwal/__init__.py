"""Spark takes the `DefaultSource` of packages whose names begin like this one's: `format("mqwal")` just works."""

from wal.spark.read.source import MqWal as DefaultSource

__all__ = ["DefaultSource"]
