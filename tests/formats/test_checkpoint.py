"""A layer read from a checkpoint folder: every rank's share, streamed, and refusals by tensor name."""

from __future__ import annotations

import json
import weakref

import pytest
import torch
from safetensors.torch import load_file, save_file

from xpu_moe.demo.shape import Shape
from xpu_moe.demo.write import twin_of, write
from xpu_moe.formats import gptq
from xpu_moe.formats.checkpoint import Checkpoint, load_layer
from xpu_moe.formats.quantization import UnsupportedCheckpoint

SHAPE = Shape(layers=1, num_experts=4, hidden_size=128, intermediate_size=128, group_size=64, scale_bits=11)


@pytest.fixture(scope="module", params=("auto-round", "gptq"))
def folder(request, tmp_path_factory):
    out = tmp_path_factory.mktemp("checkpoint") / "model"
    write(out, Shape(**{**vars(SHAPE), "quant": request.param, "scale_bits": 4}))
    return out


def dequantized(weights, expert: int) -> tuple[torch.Tensor, torch.Tensor]:
    from xpu_moe.cpu.moe_u4 import dequantize

    return (
        dequantize(weights.w13[expert], weights.w13_scale[expert], "u4"),
        dequantize(weights.w2[expert], weights.w2_scale[expert], "u4"),
    )


@pytest.mark.parametrize("tp", (1, 2))
def test_the_ranks_hold_the_twins_weights(folder, tp):
    twin = Checkpoint(twin_of(folder))
    for rank in range(tp):
        seen: list[int] = []
        weights = load_layer(folder, 0, tp=tp, rank=rank, progress=seen.append)
        assert seen == [0, 1, 2, 3]
        part = slice(rank * 128 // tp, (rank + 1) * 128 // tp)
        for expert in range(4):
            name = f"model.layers.0.block_sparse_moe.experts.{expert}"
            w13, w2 = dequantized(weights, expert)
            gate, up = (twin.tensor(f"{name}.{half}.weight").float()[part] for half in ("w1", "w3"))
            assert torch.equal(w13, torch.cat((gate, up)))
            assert torch.equal(w2, twin.tensor(f"{name}.w2.weight").float()[:, part])


def test_full_fp16_scales_keep_all_their_bits(tmp_path):
    write(tmp_path / "m", SHAPE)
    source = Checkpoint(tmp_path / "m")
    scales = source.tensor("model.layers.0.block_sparse_moe.experts.1.w2.scales")
    assert not torch.equal(scales.to(torch.bfloat16).half(), scales), "the test needs scales that bf16 would cut"
    assert torch.equal(load_layer(source, 0).w2_scale[1], scales.t())


def test_a_share_of_no_whole_groups_is_refused(folder):
    with pytest.raises(UnsupportedCheckpoint, match="intermediate_size 128 at tp 4: got 32 a rank"):
        load_layer(folder, 0, tp=4)


def damaged(folder, out, change):
    """A copy of the checkpoint whose tensors `change(tensors)` altered."""
    out.mkdir()
    for file in folder.iterdir():
        (out / file.name).write_bytes(file.read_bytes())
    for file in out.glob("*.safetensors"):
        tensors = load_file(file)
        change(tensors)
        save_file(tensors, file, metadata={"format": "pt"})
    return out


def test_damage_is_named(folder, tmp_path):
    name = "model.layers.0.block_sparse_moe.experts.2.w1"

    def asymmetric(tensors):
        if f"{name}.qzeros" in tensors:
            tensors[f"{name}.qzeros"][0, 0] = 0x77777770

    with pytest.raises(UnsupportedCheckpoint, match=rf"{name}\.qzeros: zero point 0 found"):
        load_layer(damaged(folder, tmp_path / "a", asymmetric), 0)

    def dropped(tensors):
        tensors.pop(f"{name}.scales", None)

    broken = damaged(folder, tmp_path / "b", dropped)
    index = json.loads((broken / "model.safetensors.index.json").read_text())
    index["weight_map"].pop(f"{name}.scales")
    (broken / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(UnsupportedCheckpoint, match=rf"{name}\.scales: missing"):
        load_layer(broken, 0)

    index["weight_map"][f"{name}.scales"] = "../elsewhere.safetensors"
    (broken / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(UnsupportedCheckpoint, match=r"wanted a \.safetensors file of this folder"):
        load_layer(broken, 0)


def test_the_extra_memory_of_a_load_stays_below_two_experts(tmp_path, monkeypatch):
    """Live bytes of everything that the load reads or turns, watched at its two sources."""
    write(tmp_path / "m", Shape(layers=1, num_experts=12, hidden_size=256, intermediate_size=256, shards=1))
    source = Checkpoint(tmp_path / "m")
    one_expert = load_layer(source, 0).nbytes // 12
    live, peak = 0, 0

    def watch(tensor: torch.Tensor) -> torch.Tensor:
        nonlocal live, peak
        size = tensor.untyped_storage().nbytes()
        live += size
        peak = max(peak, live)
        weakref.finalize(tensor, release, size)
        return tensor

    def release(size: int) -> None:
        nonlocal live
        live -= size

    read, turn = Checkpoint.tensor, gptq.rows_from_qweight
    monkeypatch.setattr(Checkpoint, "tensor", lambda self, name: watch(read(self, name)))
    monkeypatch.setattr(gptq, "rows_from_qweight", lambda qweight: watch(turn(qweight)))
    load_layer(source, 0)
    assert one_expert / 3 < peak <= 2 * one_expert, (peak, one_expert)
