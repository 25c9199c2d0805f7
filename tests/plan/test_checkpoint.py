"""Config, index and headers: real ones, corrupt ones."""

from __future__ import annotations

import json
import math
import os
import struct

import pytest

from tests.plan.shapes_of_models import MINIMAX_INT4, QWEN3_8B
from xpu_moe.plan.checkpoint import BadCheckpoint, Tensor, read, read_config
from xpu_moe.plan.shapes import shapes_of
from xpu_moe.plan.weights import from_headers, weights

INDEX = "model.safetensors.index.json"


def shard(file, tensors, cut=0):
    """A safetensors file of zeros with the given {name: (dtype, shape)}; `cut` bytes are missing at its end."""
    header, end = {}, 0
    for name, (dtype, shape) in tensors.items():
        size = {"F32": 4, "F16": 2, "BF16": 2, "I32": 4, "U8": 1}[dtype]
        for n in shape:
            size *= n
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    with file.open("wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        out.truncate(8 + len(text) + end - cut)


def folder(path, config=MINIMAX_INT4):
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(config))
    return path


SMALL = {**QWEN3_8B, "num_hidden_layers": 1, "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4,
         "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 256}  # fmt: skip
TENSORS = {
    "model.embed_tokens.weight": ("BF16", (256, 64)), "lm_head.weight": ("BF16", (256, 64)),
    "model.norm.weight": ("BF16", (64,)), "model.layers.0.input_layernorm.weight": ("BF16", (64,)),
    "model.layers.0.post_attention_layernorm.weight": ("BF16", (64,)),
    "model.layers.0.self_attn.q_proj.weight": ("BF16", (64, 64)),
    "model.layers.0.self_attn.k_proj.weight": ("BF16", (32, 64)),
    "model.layers.0.self_attn.v_proj.weight": ("BF16", (32, 64)),
    "model.layers.0.self_attn.o_proj.weight": ("BF16", (64, 64)),
    "model.layers.0.mlp.gate_proj.weight": ("BF16", (128, 64)), "model.layers.0.mlp.up_proj.weight": ("BF16",
    (128, 64)),
    "model.layers.0.mlp.down_proj.weight": ("BF16", (64, 128)),
}  # fmt: skip


def test_headers_and_config_agree(tmp_path):
    shard(folder(tmp_path, SMALL) / "model.safetensors", TENSORS)
    found = read(tmp_path)
    assert found.problem is None and set(found.tensors) == set(TENSORS)
    shapes = shapes_of(found.config)
    for tp in (1, 2):
        got = weights(found, shapes, tp)
        assert got.source == "headers"
        assert got.parts.total == pytest.approx(shapes.weights_per_rank(tp).total, rel=0.01)


def test_kv_heads_are_kept_whole_when_tp_is_larger(tmp_path):
    shard(folder(tmp_path, SMALL) / "model.safetensors", TENSORS)
    found = read(tmp_path)
    shapes = shapes_of(found.config)
    assert weights(found, shapes, 4).parts.attention == shapes.weights_per_rank(4).attention


def test_config_alone_is_computed(tmp_path):
    found = read(folder(tmp_path))
    assert weights(found, shapes_of(found.config), 4).source == "config"


def test_missing_shard_is_named(tmp_path):
    folder(tmp_path)
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}))
    shard(tmp_path / "one.safetensors", {"a": ("F16", (2, 2))})
    assert read(tmp_path).shards_missing == ("two.safetensors",)


@pytest.mark.parametrize(
    ("name", "missing"),
    [("model-00001-of-00002.safetensors", ("model-00002-of-00002.safetensors",)),
     ("model-00000-of-00002.safetensors", ("model-00001-of-00002.safetensors",)),
     ("model-00002-of-000003.safetensors", ("model-00001-of-000003.safetensors", "model-00003-of-000003.safetensors")),
     ("model-00001-of-00001.safetensors", ()), ("model.safetensors", ())],
)  # fmt: skip
def test_shards_without_an_index_say_how_many_they_are(tmp_path, name, missing):
    shard(folder(tmp_path, SMALL) / name, TENSORS)
    found = read(tmp_path)
    assert found.shards_missing == missing
    assert weights(found, shapes_of(found.config), 1).source == ("config" if missing else "headers")


def test_a_config_that_is_a_pipe_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "config.json")
    for call in (read, lambda path: read_config(path / "config.json")):
        with pytest.raises(BadCheckpoint, match=r"config.json: not a regular file"):
            call(tmp_path)


def test_weights_far_below_what_config_means_are_not_believed(tmp_path):
    """32 bytes beside a config of 111 GiB; layers that are not there; an attention without its experts."""
    whole = shapes_of(MINIMAX_INT4).weights_per_rank(4)
    shard(folder(tmp_path / "one") / "model.safetensors", {"a": ("F32", (8,))})
    found = read(tmp_path / "one")
    got = weights(found, shapes_of(found.config), 4)
    assert (got.source, got.parts) == ("config", whole) and "32 bytes" in got.doubt and "111." in got.doubt
    shard(folder(tmp_path / "two", {**SMALL, "num_hidden_layers": 2}) / "model.safetensors", TENSORS)
    found = read(tmp_path / "two")
    got = weights(found, shapes_of(found.config), 1)
    assert got.source == "config" and "1 of 2 layers" in got.doubt


def test_packed_weights_that_config_does_not_tell_of_are_believed(tmp_path):
    """A quarter of what config.json alone would mean: its quantization_config was forgotten, the weights are whole."""
    packed = {}
    for name, (dtype, shape) in TENSORS.items():
        if name.endswith("_proj.weight"):
            name, dtype, shape = name.replace(".weight", ".qweight"), "I32", (shape[1] // 8, shape[0])
        packed[name] = (dtype, shape)
    del packed["model.embed_tokens.weight"], packed["lm_head.weight"]
    shard(folder(tmp_path, {**SMALL, "vocab_size": 1}) / "model.safetensors", packed)
    found = read(tmp_path)
    got = weights(found, shapes_of(found.config), 1)
    assert (got.source, got.doubt) == ("headers", "")


def indexed(path, tensors, listed=None, **metadata):
    """A folder of one shard with an index of the tensors in `listed` (all of them)."""
    shard(folder(path, SMALL) / "model-00001-of-00001.safetensors", tensors)
    weight_map = dict.fromkeys(listed or tensors, "model-00001-of-00001.safetensors")
    (path / INDEX).write_text(json.dumps({"metadata": metadata, "weight_map": weight_map}))
    return read(path)


TOTAL = sum({"BF16": 2}[dtype] * math.prod(shape) for dtype, shape in TENSORS.values())


@pytest.mark.parametrize("total", [TOTAL, float(TOTAL), TOTAL - 1])
def test_bytes_that_the_index_tells_are_enough(tmp_path, total):
    found = indexed(tmp_path, TENSORS, total_size=total)
    assert found.total == total
    got = weights(found, shapes_of(found.config), 1)
    assert (got.source, got.doubt, got.caveat) == ("headers", "", "")


def test_a_byte_less_than_the_index_tells_is_not_believed(tmp_path):
    """Every layer is there, and all but a norm of the bytes: half of what config.json means would let it pass."""
    less = {name: kind for name, kind in TENSORS.items() if name != "model.norm.weight"}
    found = indexed(tmp_path, less, total_size=TOTAL)
    got = weights(found, shapes_of(found.config), 1)
    assert got.source == "config"
    assert got.doubt == f"the weights are {TOTAL - 128:,} of the {TOTAL:,} bytes that the index tells (total_size)"


def test_a_total_that_is_told_stands_in_for_the_bound(tmp_path):
    """A model that is far smaller than config.json means, with every layer and byte of its index."""
    small = {name: kind for name, kind in TENSORS.items() if "mlp" not in name and "embed" not in name}
    total = sum(2 * math.prod(shape) for _, shape in small.values())
    for told, source in ((total, "headers"), (0, "config")):
        found = indexed(tmp_path, small, total_size=told)
        assert weights(found, shapes_of({**found.config, "vocab_size": 4096}), 1).source == source


def test_a_tensor_of_the_index_that_no_file_holds_is_named(tmp_path):
    found = indexed(tmp_path, TENSORS, [*TENSORS, "model.layers.0.gone.weight"], total_size=TOTAL)
    got = weights(found, shapes_of(found.config), 1)
    assert got.source == "config"
    assert got.doubt == "no file holds 1 tensors of the index, the first model.layers.0.gone.weight"


def test_an_expert_that_is_missing_is_told_without_an_index(tmp_path):
    config = {**SMALL, "model_type": "minimax_m2", "num_local_experts": 4, "num_experts_per_tok": 2}
    experts = {f"model.layers.0.block_sparse_moe.experts.{e}.{part}.weight": ("BF16", (128, 64)) for e in range(4)
               for part in ("w1", "w2", "w3")}  # fmt: skip
    rest = {name: kind for name, kind in TENSORS.items() if "mlp" not in name}
    for there, doubt in ((4, ""), (3, "the weights hold 3 of 4 experts of layer 0")):
        kept = {name: kind for name, kind in experts.items() if int(name.split(".")[5]) < there}
        shard(folder(tmp_path, config) / "model.safetensors", {**rest, **kept})
        found = read(tmp_path)
        assert weights(found, shapes_of(found.config), 1).doubt == doubt


def test_several_shards_without_a_total_are_believed_with_a_caveat(tmp_path):
    names = list(TENSORS)
    folder(tmp_path, SMALL)
    for number, part in enumerate((names[:6], names[6:]), 1):
        shard(tmp_path / f"model-0000{number}-of-00002.safetensors", {name: TENSORS[name] for name in part})
    found = read(tmp_path)
    got = weights(found, shapes_of(found.config), 1)
    assert got.source == "headers" and "no index tells the bytes" in got.caveat


@pytest.mark.parametrize("metadata", [None, [], {"total_size": "9"}, {"total_size": True}, {"total_size": -1},
                                      {"total_size": 1e400}, {"total_size": 0.5}])  # fmt: skip
def test_a_total_that_is_none_tells_nothing(tmp_path, metadata):
    shard(folder(tmp_path, SMALL) / "a.safetensors", TENSORS)
    index = {"metadata": metadata, "weight_map": dict.fromkeys(TENSORS, "a.safetensors")}
    (tmp_path / INDEX).write_text(json.dumps(index))
    assert read(tmp_path).total is None


def test_a_type_that_is_not_known_has_the_bytes_of_its_place(tmp_path):
    text = json.dumps({"a": {"dtype": "F6_E3M2", "shape": [8], "data_offsets": [2, 8]}}).encode()
    (folder(tmp_path) / "a.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes(8))
    assert read(tmp_path).tensors["a"].bytes == 6


@pytest.mark.parametrize(
    ("index", "word"),
    [("{", "no JSON"), ("[1]", "wanted a JSON object"), ('{"weight_map": 3}', "weight_map"),
     ('{"weight_map": {}}', "names no tensor"), ("\xff\xfe", "no JSON"),
     ('{"weight_map": {"a": "../../etc/passwd"}}', "outside"), ("[" * 100000, "no JSON")],
    ids=["cut", "list", "map", "empty", "bytes", "outside", "deep"],
)  # fmt: skip
def test_corrupt_index_is_a_sentence(tmp_path, index, word):
    folder(tmp_path)
    (tmp_path / INDEX).write_text(index, encoding="latin-1")
    found = read(tmp_path)
    assert word in str(found.problem) and not found.tensors and "\n" not in str(found.problem)


def test_truncated_shard_is_a_sentence(tmp_path):
    shard(folder(tmp_path) / "model.safetensors", {"a": ("F16", (8, 8))}, cut=5)
    assert "truncated" in str(read(tmp_path).problem)


@pytest.mark.parametrize(
    "content",
    [b"", b"\x05", struct.pack("<Q", 1 << 40) + b"{}", struct.pack("<Q", 2) + b"[]", struct.pack("<Q", 2) + b"{x",
     struct.pack("<Q", 22) + b'{"a": {"shape": "big"}}'[:22]],
    ids=["empty", "five", "huge", "list", "cut", "shape"],
)  # fmt: skip
def test_broken_header_is_a_sentence(tmp_path, content):
    (folder(tmp_path) / "model.safetensors").write_bytes(content)
    assert read(tmp_path).problem


@pytest.mark.parametrize("content", ["", "{", "[]", '{"a": ' * 5000])
def test_unusable_config_raises_a_sentence(tmp_path, content):
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(BadCheckpoint, match="config.json"):
        read(tmp_path)


def test_no_config(tmp_path):
    with pytest.raises(
        BadCheckpoint, match=r"^config.json: No such file or directory; give the folder of a checkpoint$"
    ):
        read(tmp_path)


def test_zero_points_and_draft_layers_are_not_counted(tmp_path):
    extra = {
        "model.layers.0.mlp.up_proj.qzeros": ("I32", (1000, 1000)),
        "model.layers.1.mtp.weight": ("F16", (999, 999)),
    }
    shard(folder(tmp_path, SMALL) / "model.safetensors", {**TENSORS, **extra})
    found = read(tmp_path)
    shapes = shapes_of(found.config)
    assert weights(found, shapes, 1).parts.total == pytest.approx(shapes.weights_per_rank(1).total, rel=0.01)


def m27_tensors():
    """All tensors of MiniMax-M2.7 AutoRound INT4 as its index and headers declare them: (name, dtype, shape)."""
    hidden, inner, group = 3072, 1536, 128

    def packed(name, rows, columns):
        yield f"{name}.qweight", "I32", (columns // 8, rows)
        yield f"{name}.qzeros", "I32", (columns // group, rows // 8)
        yield f"{name}.scales", "F16", (columns // group, rows)

    yield from (("model.embed_tokens.weight", "BF16", (200064, hidden)), ("lm_head.weight", "BF16", (200064, hidden)))
    yield "model.norm.weight", "BF16", (hidden,)
    for layer in range(62):
        at = f"model.layers.{layer}"
        for name, rows, columns in (("q", 6144, hidden), ("k", 1024, hidden), ("v", 1024, hidden), ("o", hidden, 6144)):
            yield from packed(f"{at}.self_attn.{name}_proj", rows, columns)
        yield f"{at}.self_attn.q_norm.weight", "BF16", (6144,)
        yield f"{at}.self_attn.k_norm.weight", "BF16", (1024,)
        yield f"{at}.input_layernorm.weight", "BF16", (hidden,)
        yield f"{at}.post_attention_layernorm.weight", "BF16", (hidden,)
        yield f"{at}.block_sparse_moe.gate.weight", "BF16", (256, hidden)
        yield f"{at}.block_sparse_moe.e_score_correction_bias", "F32", (256,)
        for expert in range(256):
            for name, rows, columns in (("w1", inner, hidden), ("w3", inner, hidden), ("w2", hidden, inner)):
                yield from packed(f"{at}.block_sparse_moe.experts.{expert}.{name}", rows, columns)


@pytest.mark.slow
def test_weights_of_m27_from_its_real_tensors():
    """28.0 GiB of each of four B70, measured; every part agrees with what config.json gives."""
    sizes = {"I32": 4, "F16": 2, "BF16": 2, "F32": 4}
    tensors = {}
    for name, dtype, shape in m27_tensors():
        tensors[name] = Tensor("shard", sizes[dtype] * math.prod(shape), dtype, shape)
    shapes = shapes_of(MINIMAX_INT4)
    found, computed = from_headers(tensors, shapes, 4), shapes.weights_per_rank(4)
    assert found.total / 2**30 == pytest.approx(28.0, rel=0.03)
    for part in ("experts", "attention", "router", "embedding", "lm_head"):
        assert getattr(found, part) == pytest.approx(getattr(computed, part), rel=0.01), part
