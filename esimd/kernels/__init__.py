"""The kernels: one `.hpp` each, its argument list in `abi.py`, its launch shape in `launch.py`."""
