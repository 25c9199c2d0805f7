"""Demo checkpoints and variants of them for engine tests."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

from xpu_moe.demo.shape import Shape
from xpu_moe.demo.write import twin_of, write

# ids below the tokenizer's 258; repeats, short and long ones (the last is longer than the decode limit of 64)
PROMPTS = [
    [10, 20, 30, 40, 50, 60, 70, 80, 90, 100, 110, 120],
    [200, 3, 17, 99, 42, 42, 42, 5, 8, 13, 21, 34, 55, 89, 144, 233],
    [1, 2, 3, 4, 5],
    [(7 * k * k + 3 * k) % 256 for k in range(100)],
]
TOLERANCE = 0.002  # of teacher-forced logprobs
TOKENS = 32


def make(folder: Path, name: str, **shape) -> Path:
    """A demo checkpoint `folder`/`name` (and its bf16 twin beside it)."""
    return write(folder / name, Shape(**shape))[0]


def twin(checkpoint: Path) -> Path:
    return twin_of(checkpoint)


def variant(source: Path, name: str, change: Callable[[Path], None]) -> Path:
    """A copy of a checkpoint after `change(copy)`."""
    copy = source.with_name(name)
    shutil.copytree(source, copy)
    change(copy)
    return copy


def edit_quantization(**fields) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        config["quantization_config"].update(fields)
        (folder / "config.json").write_text(json.dumps(config))

    return change


def swap_one_scale(folder: Path) -> None:
    """Exchange the smallest and the largest scale of one expert's w2: two numbers of 2 bytes in the whole model."""
    from safetensors.torch import load_file, save_file

    name = "model.layers.0.block_sparse_moe.experts.0.w2.scales"
    file = folder / json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"][name]
    tensors = load_file(file)
    scales = tensors[name].view(-1)
    low, high = int(scales.argmin()), int(scales.argmax())
    scales[[low, high]] = scales[[high, low]].clone()
    save_file(tensors, file, metadata={"format": "pt"})
