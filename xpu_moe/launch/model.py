"""Is this folder a MiniMax checkpoint that we serve? Reads config.json and file names; standard library only."""

from __future__ import annotations

import json
import shlex
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xpu_moe.launch.errors import USAGE, LaunchError
from xpu_moe.launch.words import counted
from xpu_moe.plan import split
from xpu_moe.plan.shapes import shapes_of

MODEL_TYPES = ("minimax_m2",)
_PICKLED = (".bin", ".pt", ".pth")
_JSON = {
    list: "list",
    str: "text",
    bool: "true or false",
    int: "number",
    float: "number",
}  # what JSON has beside objects
_LARGEST_CONFIG = 16 << 20


@dataclass(frozen=True)
class Model:
    """A checked model folder. `quantization` is config.json's quant_method, "" for none; `auto_map` names its code."""

    path: Path
    config: Mapping[str, Any]
    quantization: str
    auto_map: tuple[str, ...]

    @property
    def name(self) -> str:
        """A name for clients: the folder's, or the repository's of a hub snapshot, where it is a plain one."""
        hub = self.hub_folder
        name = hub.name.rpartition("--")[2] if hub else self.path.name
        plain = name and all(c.isalnum() or c in "._-" for c in name)
        return name if plain and not name.startswith("-") else "minimax"

    @property
    def hub_folder(self) -> Path | None:
        """`models--OWNER--NAME` where this is a snapshot in Hugging Face's cache: its files are links to `blobs`."""
        root = self.path.parent.parent
        return root if self.path.parent.name == "snapshots" and root.name.startswith("models--") else None


def check(given: str) -> Model:
    """The model in folder `given`; LaunchError(USAGE) says what is wrong and what to do."""
    path = Path(given).expanduser().absolute()
    if not _exists(path, given):
        hub = given.count("/") == 1 and not given.startswith((".", "/", "~", "-"))
        advice = f"; download it first: hf download {given} --local-dir FOLDER" if hub else ""
        raise LaunchError(USAGE, f"--model {given!r}: no such folder{advice}")
    if path.suffix == ".gguf" or any(path.glob("*.gguf")):
        wanted = "an AutoRound or GPTQ INT4 checkpoint in safetensors, with its config.json"
        raise LaunchError(
            USAGE, f"--model {given!r}: GGUF files, which are llama.cpp's and are not served; take {wanted}"
        )
    if not path.is_dir():
        raise LaunchError(USAGE, f"--model {given!r}: not a folder; give the folder that holds config.json")
    config = _config(path, given)
    _refuse_pickles(path, given)
    if not any(path.glob("*.safetensors")):
        raise LaunchError(USAGE, f"--model {given!r}: holds no .safetensors file; is the download complete?")
    quantization = config.get("quantization_config")
    method = str(quantization.get("quant_method", "")) if isinstance(quantization, dict) else ""
    auto_map = config.get("auto_map")
    names = tuple(str(value) for value in auto_map.values()) if isinstance(auto_map, dict) else ()
    return Model(path, config, method, names)


def _exists(path: Path, given: str) -> bool:
    try:
        return path.exists()
    except OSError as error:  # a name that is too long, a folder that may not be entered
        raise LaunchError(USAGE, f"--model {given!r}: {error.strerror}") from None


def _config(path: Path, given: str) -> Mapping[str, Any]:
    file = path / "config.json"
    try:
        found = file.stat()
        if not stat.S_ISREG(found.st_mode):  # reading a pipe would wait for ever
            raise LaunchError(USAGE, f"{str(file)!r}: not a regular file")
        if found.st_size > _LARGEST_CONFIG:
            raise LaunchError(USAGE, f"{str(file)!r}: {found.st_size} bytes are no config.json")
        config = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise LaunchError(USAGE, f"--model {given!r}: holds no config.json; {_elsewhere(path)}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise LaunchError(USAGE, f"{str(file)!r}: cannot be read as JSON ({error})") from None
    if not isinstance(config, dict):
        raise LaunchError(USAGE, f"{str(file)!r}: got {_JSON.get(type(config), 'null')}, wanted a JSON object")
    kind = config.get("model_type")
    if kind not in MODEL_TYPES:
        wanted = " or ".join(MODEL_TYPES)
        raise LaunchError(USAGE, f"{str(file)!r}: model_type is {kind!r}, wanted {wanted}: not a MiniMax-M2 checkpoint")
    return config


def _elsewhere(path: Path) -> str:
    """Where the config.json is likely to be: in a snapshot of Hugging Face's cache, or one folder below."""
    found = [file.parent for pattern in ("snapshots/*/config.json", "*/config.json") for file in path.glob(pattern)]
    if not found:
        return "give the checkpoint's own folder"
    return f"did you mean --model {shlex.quote(str(max(found, key=lambda folder: folder.stat().st_mtime)))}?"


def _refuse_pickles(path: Path, given: str) -> None:
    try:
        files = sorted(path.iterdir())
    except OSError as error:
        raise LaunchError(USAGE, f"--model {given!r}: cannot be listed: {error.strerror}") from None
    for file in files:
        if file.suffix.lower() in _PICKLED:
            raise LaunchError(
                USAGE,
                f"--model {given!r}: refuses {file.name!r}: pickled files can run code; "
                "use a safetensors checkpoint and move this file away",
            )


def check_split(model: Model, tp: int, pp: int = 1, *, expert_parallel: bool = False, force: bool = False) -> None:
    """Tensor parallelism must divide what it splits; LaunchError(USAGE) with the sizes that work.

    `force` leaves out what another vLLM kernel might take: slices of an expert that no quantisation block fits.
    """
    heads, kv_heads, experts, layers = (
        _number(model.config, name)
        for name in ("num_attention_heads", "num_key_value_heads", "num_local_experts", "num_hidden_layers")
    )
    good = [n for n in range(1, (heads or 0) + 1) if _divides(n, heads, kv_heads)]
    shapes = shapes_of(model.config)
    if shapes and not force:
        good = split.possible(shapes, expert_parallel=expert_parallel)
    possible = f"possible: {', '.join(map(str, good))}"
    if heads and not _divides(tp, heads, kv_heads):
        raise LaunchError(
            USAGE,
            f"--tp {tp}: does not divide {counted(heads, 'attention head')} and "
            f"{counted(kv_heads or heads, 'key/value head')}; {possible}",
        )
    if experts and tp > experts:
        raise LaunchError(USAGE, f"--tp {tp}: more ranks than experts ({experts})")
    if shapes and not force:
        says = split.problem(shapes, tp, expert_parallel=expert_parallel, finer=True)
        if says:
            raise LaunchError(USAGE, f"--tp {tp}: {says}; {possible} (--force goes on nevertheless)")
    if layers and pp > layers:
        raise LaunchError(USAGE, f"--pp {pp}: more stages than layers ({layers})")


def _divides(tp: int, heads: int | None, kv_heads: int | None) -> bool:
    if heads and heads % tp:
        return False
    return not kv_heads or kv_heads % tp == 0 or tp % kv_heads == 0


def _number(config: Mapping[str, Any], name: str) -> int | None:
    value = config.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
