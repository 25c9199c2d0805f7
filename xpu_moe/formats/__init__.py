"""Checkpoint layouts and the canonical INT4 layout; dataclasses that check themselves."""
