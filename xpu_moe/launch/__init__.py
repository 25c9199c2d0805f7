"""From flags and environment to a running, checked server."""
