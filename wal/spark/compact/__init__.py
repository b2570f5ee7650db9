"""Compaction: `selection` says what a frame keeps, `latest` which keys have a newer message, `job` plans and stages."""
