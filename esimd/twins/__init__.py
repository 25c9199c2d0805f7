"""SIMT SYCL twins of the ESIMD kernels: the same names of families, the same arguments, ordinary work-items."""
