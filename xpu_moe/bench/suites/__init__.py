"""One file a suite: `HELP`, and `rows(setting)`, which yields `report.Row`s."""
