"""Running the ESIMD kernels on the CPU, through Intel's own headers: numbers, bytes, races."""
