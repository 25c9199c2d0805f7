"""The demo checkpoint maker: whole or not at all, never over somebody else's files."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time

import pytest
import torch

from xpu_moe.demo.__main__ import main
from xpu_moe.demo.shape import BadShape, Shape
from xpu_moe.demo.write import MARKER, is_current, twin_of, write
from xpu_moe.formats.checkpoint import Checkpoint

TINY = ["--layers", "1", "--num-experts", "2", "--hidden-size", "128", "--intermediate-size", "128"]


def leftovers(folder):
    return sorted(p.name for p in folder.iterdir())


@pytest.mark.parametrize("quant", ("none", "auto-round", "gptq", "fp8"))
def test_names_sizes_and_twin(tmp_path, quant):
    out = tmp_path / "m"
    assert main([str(out), "--quant", quant, *TINY]) == 0
    model = Checkpoint(out)
    assert model.config["architectures"] == ["MiniMaxM2ForCausalLM"]
    suffix = {"none": "weight", "fp8": "weight_scale_inv"}.get(quant, "qweight")
    assert f"model.layers.0.block_sparse_moe.experts.1.w3.{suffix}" in model.files
    assert "model.layers.0.block_sparse_moe.gate.weight" in model.files, "the router is never quantised"
    assert model.tensor("model.layers.0.self_attn.q_norm.weight").shape == (256,), "norm over all heads"
    assert twin_of(out).exists() == (quant != "none")
    if quant != "none":
        assert "quantization_config" not in Checkpoint(twin_of(out)).config
        assert Checkpoint(twin_of(out)).tensor("model.layers.0.self_attn.o_proj.weight").dtype == torch.bfloat16
    assert not [name for name in leftovers(tmp_path) if name.startswith(".")]


def test_a_second_run_reuses_and_another_shape_replaces(tmp_path, capsys):
    out = tmp_path / "m"
    assert main([str(out), *TINY, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["written"] is True
    before = os.stat(out / MARKER).st_mtime_ns
    assert main([str(out), *TINY, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["written"] is False
    assert os.stat(out / MARKER).st_mtime_ns == before
    assert main([str(out), *TINY, "--seed", "1"]) == 0
    assert json.loads((out / MARKER).read_text())["seed"] == 1


def test_a_second_run_names_the_same_folders(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for written in (True, False):
        assert main(["m", *TINY, "--json"]) == 0
        told = json.loads(capsys.readouterr().out)
        assert told["written"] is written and told["removed"] == []
        assert told["folders"] == [str(tmp_path / "m"), str(tmp_path / "m-deq")]


@pytest.mark.parametrize("without", (["--quant", "none"], ["--config-only"]))
def test_the_twin_of_an_earlier_checkpoint_is_removed_with_words(tmp_path, capsys, without):
    out = tmp_path / "m"
    assert main([str(out), *TINY]) == 0 and twin_of(out).exists()
    capsys.readouterr()
    assert main([str(out), *TINY, *without, "--json"]) == 0
    printed = capsys.readouterr()
    assert f"demo: removed {twin_of(out)}, the twin of the checkpoint that was there before" in printed.err
    told = json.loads(printed.out)
    assert told["removed"] == [str(twin_of(out))] and told["folders"] == [str(out)]
    assert leftovers(tmp_path) == ["m"]


def test_a_twin_that_an_earlier_version_left_is_removed_as_well(tmp_path, capsys):
    shape = Shape(layers=1, num_experts=2, hidden_size=128, intermediate_size=128, quant="none")
    write(tmp_path / "m", shape)
    write(tmp_path / "other", Shape(layers=1, num_experts=2))
    os.rename(twin_of(tmp_path / "other"), twin_of(tmp_path / "m"))
    assert not is_current(tmp_path / "m", shape)
    assert main([str(tmp_path / "m"), *TINY, "--quant", "none"]) == 0
    assert not twin_of(tmp_path / "m").exists() and "removed" in capsys.readouterr().err


def test_a_neighbour_that_is_no_twin_stays(tmp_path):
    """A checkpoint of its own, quantised or not, and a folder of somebody else's."""
    for name, quant in (("a", "none"), ("b", "gptq")):
        assert main([str(tmp_path / f"{name}-deq"), *TINY, "--quant", quant]) == 0
        assert main([str(tmp_path / name), *TINY, "--quant", "none"]) == 0
    (tmp_path / "c-deq").mkdir()
    (tmp_path / "c-deq" / "precious").write_text("x")
    assert main([str(tmp_path / "c"), *TINY, "--quant", "none"]) == 0
    assert leftovers(tmp_path) == ["a", "a-deq", "b", "b-deq", "b-deq-deq", "c", "c-deq"]


def test_weights_that_do_not_fit_into_the_memory_are_refused(tmp_path, capsys):
    big = ["--hidden-size", "131072", "--intermediate-size", "1048576"]
    assert main([str(tmp_path / "m"), *big]) == 2
    assert (
        "demo: hidden_size, intermediate_size, num_experts, layers: got 131072, 1048576, 8, 2, whose weights need "
        in (capsys.readouterr().err)
    )
    assert leftovers(tmp_path) == []
    assert main([str(tmp_path / "m"), *big, "--config-only"]) == 0


@pytest.mark.parametrize("quant", ("none", "auto-round", "gptq", "fp8"))
def test_the_number_of_weights_is_that_of_the_twin(tmp_path, quant):
    shape = Shape(quant=quant)
    folder = write(tmp_path / "m", shape)[-1]
    total = json.loads((folder / "model.safetensors.index.json").read_text())["metadata"]["total_size"]
    assert 2 * shape.weights(320) == pytest.approx(total, rel=0.005)


def test_a_missing_twin_is_made_again(tmp_path):
    shape = Shape(layers=1, num_experts=2)
    write(tmp_path / "m", shape)
    os.rename(twin_of(tmp_path / "m"), tmp_path / "gone")
    assert not is_current(tmp_path / "m", shape)


def test_a_foreign_folder_is_refused_untouched(tmp_path, capsys):
    (tmp_path / "m-deq").mkdir()
    (tmp_path / "m-deq" / "precious").write_text("x")
    assert main([str(tmp_path / "m"), *TINY]) == 2
    assert "not written by this tool" in capsys.readouterr().err
    assert leftovers(tmp_path) == ["m-deq"] and leftovers(tmp_path / "m-deq") == ["precious"]


@pytest.mark.parametrize(
    ("arguments", "field"),
    ((["--top-k", "9"], "top_k"), (["--group-size", "48"], "group_size"), (["--hidden-size", "100"], "hidden_size"),
     (["--quant", "q4_k"], "quant"), (["--layers", "0"], "layers"), (["--seed", "99999999999999999999999"], "seed"),
     (["--seed", "-1"], "seed"), (["--hidden-size", "1000000000"], "hidden_size"), (["--shards", "99999999"], "shards"),
     (["--vocab-size", "-3"], "vocab_size"), (["--scale-bits", "12"], "scale_bits")),
)  # fmt: skip
def test_sizes_that_cannot_be_are_named(tmp_path, capsys, arguments, field):
    assert main([str(tmp_path / "m"), *arguments]) == 2
    assert f"demo: {field}: got" in capsys.readouterr().err
    assert leftovers(tmp_path) == []
    with pytest.raises(BadShape):
        Shape(layers=-1)


# full at the tokenizer; full at the weights, which torch makes
@pytest.mark.parametrize("room", [1000, pytest.param(300_000, marks=pytest.mark.slow)])
def test_a_full_disk_leaves_nothing(tmp_path, room):
    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))

    done = subprocess.run(
        [sys.executable, "-m", "xpu_moe.demo", str(tmp_path / "m")], preexec_fn=limit, capture_output=True, text=True
    )
    assert done.returncode == 3, done.stderr
    assert len(done.stderr.strip().splitlines()) == 1 and "Traceback" not in done.stderr
    assert leftovers(tmp_path) == []


@pytest.mark.slow
def test_writers_at_the_same_time_agree(tmp_path):
    command = [sys.executable, "-m", "xpu_moe.demo", str(tmp_path / "m"), "--json", *TINY]
    writers = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    told = [writer.communicate() for writer in writers]
    assert [writer.returncode for writer in writers] == [0, 0, 0], told
    assert sorted(json.loads(out)["written"] for out, _ in told) == [False, False, True]
    assert leftovers(tmp_path) == ["m", "m-deq"]


def test_a_stopped_writer_leaves_nothing(tmp_path):
    command = [sys.executable, "-m", "xpu_moe.demo", str(tmp_path / "m"), "--num-experts", "64", "--layers", "64"]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as writer:
        while writer.poll() is None and not leftovers(tmp_path):
            time.sleep(0.01)
        writer.terminate()
    assert writer.returncode == 143 and leftovers(tmp_path) == []


def test_config_only_writes_any_size_without_weights(tmp_path):
    big = ["--hidden-size", "3072", "--intermediate-size", "1536", "--num-experts", "256", "--layers", "62"]
    assert main([str(tmp_path / "m"), "--config-only", *big]) == 0
    assert not list((tmp_path / "m").glob("*.safetensors")) and not twin_of(tmp_path / "m").exists()


@pytest.mark.parametrize("out", ["/", "/tmp/.."])
def test_the_root_is_no_folder_for_a_checkpoint(out, capsys):
    assert main([out, "--json"]) == 2
    assert "the root of all files" in json.loads(capsys.readouterr().out)["cannot"]
