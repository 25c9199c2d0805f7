"""Routing and activation quantisation in one launch (sm_89 and later)."""
