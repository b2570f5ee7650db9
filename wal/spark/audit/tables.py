"""Steps of an audit over the rows of segments, DataFrame in, DataFrame out: what grows with messages, keys or acks.

Everything else about a segment is small and is put together by `digest` without Spark; and so are these by `gathered`,
where they fit into one process.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.types import ArrayType, IntegerType, LongType, StructType

from wal.spark.audit.gathered import MOST_PRODUCERS, TOP_KEYS
from wal.spark.audit.steps import group_latencies

_HISTOGRAM = StructType().add("group_id", LongType()).add("bucket", IntegerType()).add("messages", LongType())


def table(rows: DataFrame, name: str) -> DataFrame:
    """One of the lists in the rows as a table of its own."""
    return rows.select(F.inline(name))


def keys(found: DataFrame) -> DataFrame:
    """The most frequent keys of each channel, with how many different ones and how many keyed messages it has."""
    counted = found.groupBy("channel_id", "key").agg(F.sum("messages").alias("messages"))
    channel = Window.partitionBy("channel_id")
    first = channel.orderBy(F.desc("messages"), "key")
    return (
        counted.withColumn("distinct_keys", F.count(F.lit(1)).over(channel))
        .withColumn("keyed", F.sum("messages").over(channel))
        .withColumn("rank", F.row_number().over(first))
        .where(F.col("rank") <= TOP_KEYS)
        .orderBy("channel_id", "rank")
    )


def producers(ranges: DataFrame) -> DataFrame:
    """First and last sequence of each producer, and how many in between are not there; the worst first."""
    one = Window.partitionBy("channel_id", "producer").orderBy("first", "last")
    before = one.rowsBetween(Window.unboundedPreceding, -1)
    hole = F.col("first") - F.coalesce(F.max("last").over(before), F.col("first") - 1) - 1
    return (
        ranges.withColumn("hole", F.greatest(hole, F.lit(0)))
        .groupBy("channel_id", "producer")
        .agg(
            F.min("first").alias("first_sequence"),
            F.max("last").alias("last_sequence"),
            F.sum((F.col("hole") > 0).cast("long")).alias("gaps"),
            F.sum("hole").alias("missing"),
        )
        .orderBy(F.desc("missing"), "channel_id", "producer")
        .limit(MOST_PRODUCERS)
    )


def latencies(steps: DataFrame) -> DataFrame:
    """Histograms of the time from publish to ack of each group: bucket, messages.

    The steps of one stretch of a partition come together from all segments; no task ever holds more than that.
    """
    together = F.collect_list(F.struct("group_id", "packed"))
    histograms = F.udf(group_latencies, ArrayType(_HISTOGRAM), useArrow=False)  # few rows, and large ones
    return (
        steps.groupBy("channel_id", "partition", "stretch")
        .agg(together.alias("steps"))
        .select("channel_id", F.inline(histograms("steps")))
        .groupBy("channel_id", "group_id", "bucket")
        .agg(F.sum("messages").alias("messages"))
    )
