"""The environment: a registry (data), profiles, and the one typed reader. Needs no torch."""
