"""Other people's frameworks on mq: each module needs the extra of its name, and is imported by who uses it."""
