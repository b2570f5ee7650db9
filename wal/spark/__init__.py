"""Spark on the log: the one place in the project that may import pyspark and pyarrow."""
