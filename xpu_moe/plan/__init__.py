"""KV arithmetic, roofline, cards."""
