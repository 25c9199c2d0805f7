"""NVIDIA kernels and adapters, installed as `xpu_moe.cuda`. Importing it loads nothing of the device."""
