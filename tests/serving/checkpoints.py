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


ONE_SCALE = "model.layers.0.block_sparse_moe.experts.0.w2.scales"


def change_tensor(folder: Path, name: str, change: Callable[[dict], None]) -> None:
    """Rewrite the file that holds tensor `name` after `change(its tensors)`."""
    from safetensors.torch import load_file, save_file

    file = folder / json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"][name]
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file, metadata={"format": "pt"})


def swap_one_scale(folder: Path) -> None:
    """Exchange the smallest and the largest scale of one expert's w2: two numbers of 2 bytes in the whole model."""

    def swap(tensors: dict) -> None:
        scales = tensors[ONE_SCALE].view(-1)
        low, high = int(scales.argmin()), int(scales.argmax())
        scales[[low, high]] = scales[[high, low]].clone()

    change_tensor(folder, ONE_SCALE, swap)


def spoil_one_scale(folder: Path) -> None:
    """One NaN in the whole model."""
    change_tensor(folder, ONE_SCALE, lambda tensors: tensors[ONE_SCALE].view(-1)[:1].fill_(float("nan")))


def drop_one_tensor(folder: Path) -> None:
    """A checkpoint whose last file was cut: one tensor is in no file and not in the index."""
    change_tensor(folder, ONE_SCALE, lambda tensors: tensors.pop(ONE_SCALE))
    index = folder / "model.safetensors.index.json"
    listed = json.loads(index.read_text())
    del listed["weight_map"][ONE_SCALE]
    index.write_text(json.dumps(listed))
