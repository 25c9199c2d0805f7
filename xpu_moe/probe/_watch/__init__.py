"""Watching processes that may hang, die or leave things behind: shared by the probes that start some."""
