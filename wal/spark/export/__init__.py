"""The export: `job` plans and runs, `partfiles` writes, `destination` makes the files of a run count."""
