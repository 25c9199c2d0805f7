"""Intel kernels and their loader, installed as `xpu_moe.esimd`. Importing it loads nothing of the device."""
