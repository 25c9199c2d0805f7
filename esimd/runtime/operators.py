"""The operators of the hot road: schemas and fakes here, implementation in torch_ops.hpp (registered by session.ready).

All have the form (tensors in the plan's slot order, int plan) -> (): what they write is marked, nothing is returned,
nothing is allocated, nothing waits. They are what a backend's `run` calls; users call `xpu_moe.ops`.
"""

from __future__ import annotations

import torch

from xpu_moe.ops.library import LIBRARY

_EXPERTS = "Tensor x, Tensor w13, Tensor w13_scale, Tensor w2, Tensor w2_scale"
_RESULTS = "Tensor(a!) out, Tensor(b!) workspace"

SCHEMAS = (
    f"launch_moe_u4({_EXPERTS}, Tensor topk_weights, Tensor topk_ids, {_RESULTS}, int plan) -> ()",
    f"launch_moe_u4_routed({_EXPERTS}, Tensor logits, Tensor bias, {_RESULTS}, int plan) -> ()",
    "launch_route_sigmoid_topk(Tensor logits, Tensor bias, Tensor(a!) weights, Tensor(b!) ids, int plan) -> ()",
    "launch_qk_rms_partial(Tensor qkv, Tensor(a!) sums, int plan) -> ()",
    "launch_qk_rms_apply(Tensor qkv, Tensor sums, Tensor q_weight, Tensor k_weight, Tensor(a!) q_out, "
    "Tensor(b!) k_out, int plan) -> ()",
)
NAMES = tuple(schema.split("(", 1)[0] for schema in SCHEMAS)

for _schema in SCHEMAS:
    LIBRARY.define(_schema)
    torch.library.register_fake(f"xpu_moe::{_schema.split('(', 1)[0]}", lambda *_: None, lib=LIBRARY)

_ops = torch.ops.xpu_moe
moe_u4 = _ops.launch_moe_u4.default
moe_u4_routed = _ops.launch_moe_u4_routed.default
route_sigmoid_topk = _ops.launch_route_sigmoid_topk.default
qk_rms_partial = _ops.launch_qk_rms_partial.default
qk_rms_apply = _ops.launch_qk_rms_apply.default
