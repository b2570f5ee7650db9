"""Questions to a log, answered with SQL.

Cells begin with `# %%`: open the file in VS Code, PyCharm or Jupyter (jupytext), or run it as a program:

    pip install 'mq-broker[spark]'
    python examples/spark/questions.py ./data

A broker may be running on that directory; it does not notice.
"""

# %% A session, and the log as three tables
import sys

from wal.spark.session import session

DIRECTORY = sys.argv[1] if len(sys.argv) > 1 else "./data"

spark = session("questions")
log = spark.read.format("mqwal")
log.load(DIRECTORY).createOrReplaceTempView("messages")
log.option("view", "batches").load(DIRECTORY).createOrReplaceTempView("batches")
log.option("view", "records").load(DIRECTORY).createOrReplaceTempView("records")

# %% Which channel is busiest, hour by hour?
# Batches know how many messages they hold: nothing has to be decoded.
busiest = spark.sql("""
    SELECT date_trunc('HOUR', min_timestamp) AS hour, channel, sum(count) AS messages, sum(bytes) AS bytes
    FROM batches
    GROUP BY ALL
    QUALIFY row_number() OVER (PARTITION BY hour ORDER BY messages DESC, channel) = 1
    ORDER BY hour
""")
busiest.show(truncate=False)

# %% Which group is the slowest to ack?
# An ack names ranges of offsets, or everything before one (Committed). A batch and an ack that overlap make a latency,
# which counts for as many messages as they share. Numbers of 64 bits are text in JSON. Acks within transactions are
# left out here; `mq spark audit` has them all.
spark.sql("""
    SELECT channel_id, group_id, partition, timestamp AS acked_at,
           coalesce(CAST(range.start AS BIGINT), 0) AS start, CAST(range.end AS BIGINT) AS end
    FROM records LATERAL VIEW explode(
        from_json(fields, 'ranges ARRAY<STRUCT<start: STRING, `end`: STRING>>').ranges
    ) AS range
    WHERE type = 'ACKED'
    UNION ALL
    SELECT channel_id, group_id, partition, timestamp, coalesce(lag(upto) OVER earlier, 0), upto
    FROM (
        SELECT *, CAST(from_json(fields, 'offset STRING').offset AS BIGINT) AS upto
        FROM records WHERE type = 'COMMITTED'
    )
    WINDOW earlier AS (PARTITION BY channel_id, group_id, partition ORDER BY sequence)
""").createOrReplaceTempView("acks")

slowest = spark.sql("""
    WITH names AS (
        SELECT group_id, from_json(fields, 'name STRING').name AS name FROM records WHERE type = 'GROUP_CREATED'
    ), latencies AS (
        SELECT batches.channel, acks.group_id,
               unix_micros(acks.acked_at) - unix_micros(batches.max_timestamp) AS us,
               least(acks.end, batches.end_offset) - greatest(acks.start, batches.base_offset) AS messages
        FROM acks JOIN batches
          ON acks.channel_id = batches.channel_id AND acks.partition = batches.partition
         AND acks.start < batches.end_offset AND acks.end > batches.base_offset
    )
    SELECT channel, coalesce(name, CAST(group_id AS STRING)) AS `group`, sum(messages) AS acked,
           round(percentile(us, 0.5, messages) / 1000, 1) AS median_ms,
           round(percentile(us, 0.99, messages) / 1000, 1) AS p99_ms
    FROM latencies LEFT JOIN names USING (group_id)
    GROUP BY ALL
    ORDER BY p99_ms DESC
""")
slowest.show(truncate=False)

# %% Which messages are poison?
# A dead letter's headers say where it came from and why; its key often says whose it is.
poison = spark.sql("""
    WITH letters AS (
        SELECT value, CAST(key AS STRING) AS key,
               map_from_entries(transform(headers, h -> struct(h.key, CAST(h.value AS STRING)))) AS header
        FROM messages WHERE channel LIKE '%.dlq'
    )
    SELECT header['mq-origin-channel'] AS channel, header['mq-origin-group'] AS `group`,
           header['mq-reason'] AS reason, key, count(*) AS messages,
           min_by(CAST(value AS STRING), CAST(header['mq-origin-offset'] AS BIGINT)) AS first_one
    FROM letters
    GROUP BY ALL
    ORDER BY messages DESC, channel, reason, key
""")
poison.show(truncate=60)
