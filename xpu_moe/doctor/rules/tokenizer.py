"""The tokenizer of a folder that was looked at."""

from __future__ import annotations

import errno
import os
from typing import Any

from xpu_moe.doctor.rules.base import Context, Row, Rule
from xpu_moe.doctor.rules.checkpoint import readable

Hit = dict[str, Any]


def _damaged(context: Context) -> Hit | None:
    fault = context.model.tokenizer_error
    if fault is None:
        return None
    path = context.model.path(fault.file)
    fix = readable(path) if fault.first == os.strerror(errno.EACCES) else f"download {fault.file} again"
    return {"file": fault.file, "path": path, "says": fault.first, "fix": fix}


def _missing(context: Context) -> bool:
    return context.model.tokenizer_missing


RULE = Rule(
    "tokenizer that is damaged or not there",
    "vLLM reads it before the weights and ends without it, unless --tokenizer names another one.",
    (
        Row(
            "tokenizer.damaged", "error", "model.tokenizer_error",
            "{file} cannot be read",
            "{path}: {says}.",
            "{fix}",
            "transformers, tokenizers", _damaged,
        ),
        Row(
            "tokenizer.missing", "warn", "model.tokenizer_missing",
            "the folder holds no tokenizer",
            "Neither tokenizer.json nor tokenizer.model nor vocab.json with merges.txt is there.",
            "download tokenizer.json and tokenizer_config.json of the checkpoint, or give vLLM --tokenizer",
            "transformers, tokenizers", _missing,
        ),
    ),
)  # fmt: skip
