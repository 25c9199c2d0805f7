"""The tokenizer's files: are they there, and can they be read? None of their meaning is judged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_MOST = 256 << 20
_JSON = ("tokenizer.json", "tokenizer_config.json", "vocab.json")
# each set is a tokenizer for itself
_WHOLE = (("tokenizer.json",), ("tokenizer.model",), ("vocab.json", "merges.txt"), ("tekken.json",))
_OWN = ("*.tiktoken", "*tokenization*.py", "spiece.model", "*.spm", "vocab.txt")  # tokenizers of other families


def tokenizer(folder: Path) -> dict[str, Any]:
    """`tokenizer_error` {first, file, count} of files that are there and damaged; `tokenizer_missing`."""
    wrong = {name: says for name in _JSON if (says := _wrong(folder / name))}
    found: dict[str, Any] = {}
    if wrong:
        file, says = next(iter(wrong.items()))
        found["tokenizer_error"] = {"first": says, "file": file, "count": len(wrong)}
    whole = any(all((folder / name).exists() for name in names) for names in _WHOLE)
    if not whole and not any(next(folder.glob(pattern), None) for pattern in _OWN):
        found["tokenizer_missing"] = True
    return found


def _wrong(file: Path) -> str:
    """What is wrong with a JSON file of the tokenizer; "" where nothing is, or it is not there."""
    try:
        if not file.exists():
            return ""
        if not file.is_file():  # reading a pipe would wait for ever
            return "not a regular file"
        size = file.stat().st_size
        if not size:
            return "empty"
        if size > _MOST:
            return f"{size} bytes, more than any {file.name} has"
        content = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        return str(error.strerror)
    except (ValueError, RecursionError) as error:
        return f"no JSON ({str(error)[:80]})"
    if not isinstance(content, dict):
        return f"got {type(content).__name__}, wanted a JSON object"
    if file.name == "tokenizer.json" and not isinstance(content.get("model"), dict):
        return "holds no model, which every tokenizer.json has"
    return ""
