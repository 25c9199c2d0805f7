"""Reference implementations: the truth for tests, and what runs without an accelerator."""
