"""Parts of `python -m xpu_moe.probe allreduce`: a parent that watches, ranks that measure, and what is said of both."""
