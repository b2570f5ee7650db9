"""The log as a data source: `listing` finds the segments, `scan` the frames, `rows` and `views` make rows."""
