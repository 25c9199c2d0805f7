"""Tiny random MiniMax-M2 checkpoints with the real tensor names: for the demo, for tests, for any machine."""
