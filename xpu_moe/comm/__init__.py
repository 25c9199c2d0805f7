"""Process groups, all-reduce forms, timeouts."""
