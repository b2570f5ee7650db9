"""Spark on the log: the one place in the project that may import pyspark and pyarrow.

    session, java    a SparkSession that knows the log, and the Java that it needs
    read/            the log as a data source, for batches and for streams: segments become rows
    audit/           is the log whole, and what is in it: Parquet tables and a page
    compact/         segments without what nobody needs, staged for the broker to install
    export/          messages as Parquet files, each exactly once
    replay           messages picked by a question, on their way back into a channel
    progress         a bar while a job runs
    failure          what went wrong, in one line

A package's job is in its `job` module (of `read`: `source`), and the other modules are what that is made of.
"""
