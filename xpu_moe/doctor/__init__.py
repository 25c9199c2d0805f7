"""What is wrong with this machine, this environment or this plan, said before the load."""
