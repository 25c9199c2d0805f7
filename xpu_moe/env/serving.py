"""Variables of the vLLM plugin."""

from __future__ import annotations

from xpu_moe.env.variable import Variable

VARIABLES = (
    Variable(
        "XPU_MOE_REPORT",
        "path",
        "Folder into which every worker writes which backend serves its layers, and why (JSON, one file a worker).",
        "xpu_moe",
        why="A path is no part of --additional-config: it would change vLLM's compile-cache key at every start.",
        source="xpu_moe/serving/report.py",
    ),
)
