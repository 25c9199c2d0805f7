"""`python -m xpu_moe.demo OUT`: write a tiny random MiniMax-M2 checkpoint.

Exit codes: 0 written (or there already), 2 bad arguments or a folder with anything that this tool did not write, 3 it
could not be written, 74 the answer could not be written, 141 its reader has gone.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from dataclasses import fields
from pathlib import Path

from xpu_moe import needs, streams
from xpu_moe.demo.shape import QUANTS, BadShape, Shape
from xpu_moe.demo.write import NotOurs, Written, folders_of, is_current, locked, replace

_HELP = {
    "quant": f"one of {', '.join(QUANTS)}",
    "group_size": "of the 4-bit formats",
    "vocab_size": "embedding rows; 0 = the tokenizer's (vllm bench latency wants >= 10000)",
    "scale_bits": "significant bits of a scale: 4 = bf16 twin exact, 11 = full fp16",
    "experts_only": "quantise the experts only, attention stays bf16",
}


def _folder(text: str) -> Path:
    if not text.strip():  # pathlib takes "" for the working folder
        raise argparse.ArgumentTypeError(f"got {text!r}, wanted a folder's name")
    return Path(text)


def parser() -> streams.Parser:
    made = streams.Parser(prog="python -m xpu_moe.demo", description=__doc__)
    made.add_argument("out", type=_folder, help="folder to write; a quantised one gets a bf16 twin OUT-deq")
    made.add_argument("--config-only", action="store_true", help="no weights (for load_format=dummy), any size")
    made.add_argument(
        "--repair", action="store_true", help="write anew where files were changed; these are kept in OUT.kept-…"
    )
    made.add_argument("--json", action="store_true", help="one object on stdout")
    for field in fields(Shape):
        flag = "--" + field.name.replace("_", "-")
        text = f"{_HELP.get(field.name, '')} (default {field.default})".strip()
        if field.default is False:
            made.add_argument(flag, action="store_true", help=text)
        else:
            made.add_argument(flag, type=type(field.default), default=field.default, help=text)
    return made


def main(argv: list[str] | None = None) -> int:
    streams.prepare()
    arguments = parser().parse_args(argv)
    done = None
    try:
        shape = Shape(**{field.name: getattr(arguments, field.name) for field in fields(Shape)})
        with locked(arguments.out):
            fresh = not is_current(arguments.out, shape, arguments.config_only)
            folders = folders_of(arguments.out, shape, arguments.config_only)
            if fresh:
                lacking = needs.unusable("tokenizers", *(() if arguments.config_only else ("safetensors", "torch")))
                if lacking:
                    return streams.refuse("demo", lacking, arguments.json, 3)
                done = replace(arguments.out, shape, config_only=arguments.config_only, repair=arguments.repair)
    except (BadShape, NotOurs) as error:
        return streams.refuse("demo", str(error), arguments.json)
    except ModuleNotFoundError as error:  # of what these need in turn
        return streams.refuse("demo", needs.told(error.name or str(error)), arguments.json, 3)
    except Exception as error:
        if not isinstance(error, OSError) and type(error).__name__ != "SafetensorError":
            raise
        # a full disk reaches us as OSError from Python's writes, as SafetensorError from safetensors'
        wrong = f"{arguments.out}: {getattr(error, 'strerror', None) or error}; nothing was left"
        return streams.refuse("demo", wrong, arguments.json, 3)
    done = done or Written(folders, [], [], [])
    _warn(done)
    if arguments.json:
        lists = {field.name: [str(folder) for folder in getattr(done, field.name)] for field in fields(Written)}
        text = json.dumps({"out": str(arguments.out), "written": fresh, **lists})
    else:
        text = f"{'wrote' if fresh else 'there already:'} {' and '.join(str(folder) for folder in folders)}"
    return streams.emit("demo", text)


def _warn(done: Written) -> None:
    for folder in done.replaced:
        streams.warn(f"demo: replaced {folder}: what was there before was another demo, or not whole")
    for folder in done.removed:
        streams.warn(f"demo: removed {folder}, the twin of the checkpoint that was there before")
    for folder in done.kept:
        streams.warn(f"demo: kept {folder}: files that were changed, or of a run that was cut off; not removed for you")


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that half a checkpoint is removed
    sys.exit(streams.interruptible("demo", main))
