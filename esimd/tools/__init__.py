"""From kernel source to SPIR-V, from SPIR-V to machine code and its figures. None of it is needed to serve."""
