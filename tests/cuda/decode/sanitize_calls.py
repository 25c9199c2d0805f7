"""A few calls of the decode kernels for compute-sanitizer: every bucket of M, 4-bit and FP8.

    OPTIONS="--kernel-name kns=moe_decode"
    PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool memcheck --check-bulk-copy yes $OPTIONS \\
        python -m tests.cuda.decode.sanitize_calls --plain
    compute-sanitizer --tool racecheck --racecheck-report all --racecheck-memcpy-async yes $OPTIONS \\
        python -m tests.cuda.decode.sanitize_calls --plain --strict --calls 1

Without the caching allocator every tensor is its own allocation, so that an access behind one is seen. `--strict`
takes the build in which every lane arrives at barriers, which racecheck can follow. Without `--plain` the results are
compared with the float32 reference (many kernels of torch's, slow under a sanitizer). Exit code 1: a result is wrong;
2: no card.
"""

from __future__ import annotations

import argparse
import sys

import numpy as np
import torch

from tests.cuda.decode.soak_layers import Layer, Variant
from xpu_moe.cuda.decode import plan as plans

LAYERS = {
    "u4": Variant(4, 256, 128, 8, 2),
    "u4w": Variant(4, 256, 384, 8, 2, group=64),
    "u4n": Variant(4, 256, 384, 8, 3, "relu2_no_mul", group=32, scale="float32"),
    "f8": Variant(8, 256, 128, 8, 2),
    "f8w": Variant(8, 256, 384, 8, 2),
    "u4b": Variant(4, 256, 128, 8, 9),  # more than 32 routes at M 4: all warps sort
    "f8b": Variant(8, 256, 128, 8, 9),
    "u4o": Variant(4, 1536, 384, 16, 8),  # one token: every warp has two slots, and blocks that lie side by side
    "f8o": Variant(8, 1536, 384, 16, 8),
}
CASES = (
    ("u4", 1), ("f8", 1), ("u4w", 4), ("f8w", 4), ("u4w", 16), ("f8w", 16), ("u4", 64), ("f8", 64), ("u4n", 16),
    ("u4n", 2), ("u4b", 4), ("f8b", 4), ("f8w", 64), ("u4w", 64), ("u4o", 1), ("f8o", 1),
)  # fmt: skip


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.cuda.decode.sanitize_calls")
    parser.add_argument("--cases", help="indices of CASES, comma separated (default: all)")
    parser.add_argument("--calls", type=int, default=3, help="launches a case; 3: both buffers of h, and a cleared one")
    parser.add_argument("--strict", action="store_true", help="every lane arrives at barriers")
    parser.add_argument("--plain", action="store_true", help="no comparison, only: is the result finite?")
    arguments = parser.parse_args(argv)
    if not torch.cuda.is_available():
        print("sanitize_calls: no CUDA device; it needs a Hopper card", file=sys.stderr)
        return 2
    plans.STRICT = arguments.strict
    chosen = [int(i) for i in arguments.cases.split(",")] if arguments.cases else range(len(CASES))
    layers = {name: Layer(LAYERS[name], 1, "cuda") for name in {CASES[i][0] for i in chosen}}
    torch.cuda.synchronize()
    wrong = sum([not _case(i, layers[CASES[i][0]], arguments.calls, arguments.plain) for i in chosen])
    print(f"{len(chosen)} cases, wrong: {wrong}, strict: {plans.STRICT}", flush=True)
    return 1 if wrong else 0


def _case(index: int, layer: Layer, calls: int, plain: bool) -> bool:
    """Inputs made on the host, so that few of torch's kernels run."""
    (name, tokens), variant, draw = CASES[index], layer.variant, np.random.default_rng(index)
    x = torch.from_numpy(draw.standard_normal((tokens, variant.hidden)).astype(np.float32))
    scale = None
    if variant.bits == 8:
        scale = torch.from_numpy((draw.random((tokens, variant.hidden // 128)) + 0.5).astype(np.float32) / 16)
        x = (x * 16).to(torch.float8_e4m3fn)
        wide = x.float() * scale.repeat_interleave(128, 1)
    else:
        x = x.bfloat16()
        wide = x.float()
    ids = draw.integers(0, variant.experts, (tokens, variant.top_k)).astype(np.int32)
    ids[draw.random(ids.shape) < 0.1] = -1
    weights = torch.from_numpy(draw.random((tokens, variant.top_k)).astype(np.float32)).cuda()
    routes = torch.from_numpy(ids).cuda()
    out = torch.full((tokens, variant.hidden), float("nan"), dtype=torch.bfloat16).cuda()
    call = layer.call(x.cuda(), None if scale is None else scale.cuda(), weights, routes, out)
    for _ in range(calls):
        call()  # programmatic, as in the product
    torch.cuda.synchronize()
    got = out.cpu().float()
    if plain:
        good = bool(got.isfinite().all())
        print(f"{name} M {tokens}: {'finite' if good else 'NOT FINITE'}", flush=True)
        return good
    wanted = layer.reference(wide.cuda(), weights, routes.long()).cpu()
    error = float((got - wanted).norm() / wanted.norm().clamp(min=1e-30))
    print(f"{name} M {tokens}: error {error:.2g} {'ok' if error < 1e-2 else 'WRONG'}", flush=True)
    return error < 1e-2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
