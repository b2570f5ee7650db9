"""The audit: `summary` makes notes of a segment, `job` joins those of all segments, `files` and `report` tell."""
