"""Names that the field's serve scripts use already; `scripts/serve_minimax.sh` reads them where no flag is given."""

from __future__ import annotations

from typing import Final

from xpu_moe.env.variable import Variable

_SCRIPT: Final = "script"

VARIABLES = (
    Variable("MODEL", "path", "Folder of the checkpoint to serve.", _SCRIPT),
    Variable("TP", "int", "Tensor-parallel size.", _SCRIPT),
    Variable("PP", "int", "Pipeline-parallel size.", _SCRIPT),
    Variable("DTYPE", "enum", "Type of the activations.", _SCRIPT,
             choices=("auto", "half", "float16", "bfloat16", "float", "float32")),
    Variable("MAX_MODEL_LEN", "int", "Longest prompt and answer together, in tokens.", _SCRIPT),
    Variable("MAX_BATCHED_TOKENS", "int", "Tokens of one step.", _SCRIPT),
    Variable("MAX_NUM_SEQS", "int", "Requests served at once.", _SCRIPT),
    Variable("BLOCK_SIZE", "int", "Tokens of a KV-cache block.", _SCRIPT),
    Variable("CCL_IPC", "enum", "Becomes CCL_ZE_IPC_EXCHANGE on Intel GPUs.", _SCRIPT,
             choices=("pidfd", "drmfd", "sockets")),
    Variable("INPUT_LEN", "int", "Prompt tokens of the bench line that is printed.", _SCRIPT),
    Variable("OUTPUT_LEN", "int", "Answer tokens of the bench line that is printed.", _SCRIPT),
    Variable("NUM_PROMPTS", "int", "Requests of the bench line that is printed.", _SCRIPT),
    Variable("VIRTUAL_ENV", "path", "The active virtual environment; used as it is when it holds vLLM.", "system"),
    Variable("CONDA_PREFIX", "path", "The active conda environment; used as it is when it holds vLLM.", "system"),
    Variable("NOTIFY_SOCKET", "path", "Where systemd wants to hear that the service is ready.", "system"),
    Variable("XPU_MOE_VLLM", "path", "The vllm command (default: the one beside the running Python).", "xpu_moe"),
    Variable(
        "XPU_MOE_STALL_LIMIT", "int", "Seconds without a sign of progress after which a start counts as stalled.",
        "xpu_moe", why="Replaces the limits of xpu_moe/doctor/phases.py, all of them.",
    ),
)  # fmt: skip
