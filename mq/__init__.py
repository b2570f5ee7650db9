"""mq: a durable, pull-based message broker."""

# The one place that states the version; the package metadata and `mq --version` read it from here.
__version__ = "0.1.0"
