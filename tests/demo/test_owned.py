"""A folder is replaced only where every file in it is one that the demo's maker wrote, and as it wrote it."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from xpu_moe.demo import owned
from xpu_moe.demo import write as maker
from xpu_moe.demo.__main__ import main
from xpu_moe.demo.write import MARKER, twin_of

TINY = ["--layers", "1", "--num-experts", "2", "--hidden-size", "128", "--intermediate-size", "128"]
OTHERS = (["--quant", "none"], ["--seed", "1"], ["--config-only"])


def contents(folder: Path) -> dict[str, bytes | None]:
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "m"
    assert main([str(folder), *TINY]) == 0
    return folder


@pytest.fixture
def out(made, tmp_path) -> Path:
    """A checkpoint with its twin, alone in its folder."""
    for folder in (made, twin_of(made)):
        shutil.copytree(folder, tmp_path / folder.name)
    return tmp_path / "m"


@pytest.mark.parametrize("repair", ([], ["--repair"]))
@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("place", ("m/notes.txt", "m/finetune/a", "m-deq/eval.json", "m-deq/.hidden"))
def test_a_file_of_somebody_elses_is_named_and_all_stays(out, capsys, place, other, repair):
    file = out.parent / place
    file.parent.mkdir(exist_ok=True)
    file.write_text("precious")
    before = contents(out.parent)
    assert main([str(out), *TINY, *other, *repair, "--json"]) == 2
    told = json.loads(capsys.readouterr().out.splitlines()[-1])["cannot"]
    name = "finetune/" if "finetune" in place else file.name
    folder = out.parent / place.split("/")[0]
    assert f"{folder}: holds {name}, not written by this tool; nothing was touched: choose another OUT" in told
    assert "--repair" not in told and contents(out.parent) == before


@pytest.mark.parametrize("other", ([], *OTHERS))
@pytest.mark.parametrize("place", ("m/config.json", "m-deq/config.json"))
def test_a_changed_file_is_named_and_stays_and_with_repair_it_is_kept(out, capsys, place, other):
    file = out.parent / place
    text = file.read_text()
    file.write_text(text.replace("4096", "2048"))  # of the same size
    before = contents(out.parent)
    assert main([str(out), *TINY, *other]) == 2
    printed = capsys.readouterr().err
    assert f"{file.parent}: config.json: changed since" in printed and "or give --repair" in printed
    assert contents(out.parent) == before
    assert main([str(out), *TINY, *other, "--repair", "--json"]) == 0
    (kept,) = json.loads(capsys.readouterr().out)["kept"]
    assert (Path(kept) / "config.json").read_text() == text.replace("4096", "2048")
    assert sorted(os.listdir(kept)) == [MARKER, "config.json"]
    assert main([str(out), *TINY, *other, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["written"] is False


def test_what_was_replaced_is_said(out, capsys):
    assert main([str(out), *TINY, "--seed", "1", "--json"]) == 0
    printed = capsys.readouterr()
    told = json.loads(printed.out.splitlines()[-1])
    assert told["replaced"] == told["folders"] == [str(out), str(twin_of(out))] and told["kept"] == []
    assert f"demo: replaced {out}" in printed.err
    assert sorted(os.listdir(out.parent)) == ["m", "m-deq"]


def test_a_missing_file_is_written_again(out):
    before = contents(out)
    (out / "model-00001-of-00002.safetensors").unlink()
    assert main([str(out), *TINY]) == 0
    assert contents(out) == before and sorted(os.listdir(out.parent)) == ["m", "m-deq"]


def test_a_demo_with_a_note_in_it_is_still_there_already(out, capsys):
    (out / "notes.txt").write_text("x")
    capsys.readouterr()
    assert main([str(out), *TINY]) == 0
    assert "there already" in capsys.readouterr().out


@pytest.mark.parametrize("number", range(6))
def test_an_error_at_any_rename_undoes_all(out, monkeypatch, capsys, number):
    """Two folders and two renames each; past those, nothing fails."""
    before, rename, calls = contents(out.parent), os.rename, []

    def failing(*names):
        calls.append(names)
        if len(calls) == number + 1:
            raise OSError(28, "No space left on device")
        rename(*names)

    monkeypatch.setattr(maker.os, "rename", failing)
    assert main([str(out), *TINY, "--seed", "1"]) == (3 if number < 4 else 0)
    assert (contents(out.parent) == before) == (number < 4)
    assert sorted(os.listdir(out.parent)) == ["m", "m-deq"]


def test_what_a_run_that_was_cut_off_left_is_named(out, capsys):
    """Killed after the old folder left and before the new one came."""
    os.rename(out, out.with_name("m.kept-0123abcd"))
    assert main([str(out), *TINY, "--json"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out.splitlines()[-1])["kept"] == [f"{out}.kept-0123abcd"]
    assert f"demo: kept {out}.kept-0123abcd: " in printed.err


def test_a_file_that_comes_while_it_is_written_is_kept(out, monkeypatch, capsys):
    fill = maker._fill

    def meanwhile(*given):
        fill(*given)
        (out / "late.txt").write_text("x")

    monkeypatch.setattr(maker, "_fill", meanwhile)
    assert main([str(out), *TINY, "--seed", "1", "--json"]) == 0
    (kept,) = json.loads(capsys.readouterr().out.splitlines()[-1])["kept"]
    assert (Path(kept) / "late.txt").read_text() == "x"


def test_a_demo_of_an_earlier_version_is_refused_and_with_repair_kept(out, capsys):
    for folder in (out, twin_of(out)):
        marker = json.loads((folder / MARKER).read_text())
        del marker["files"], marker["twin"]
        (folder / MARKER).write_text(json.dumps(marker | {"format": 1}))
    before = contents(out)
    assert main([str(out), *TINY, "--quant", "none"]) == 2
    assert "of an earlier version" in capsys.readouterr().err
    assert contents(out) == before
    assert main([str(out), *TINY, "--quant", "none", "--repair", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["removed"] == [str(twin_of(out))] and len(told["kept"]) == 2
    assert before in [contents(Path(kept)) for kept in told["kept"]]


@pytest.mark.parametrize("name", (MARKER, "config.json"))
def test_a_link_in_place_of_a_file_of_ours_is_not_ours(out, tmp_path, name):
    os.rename(out / name, tmp_path / "elsewhere")
    (out / name).symlink_to(tmp_path / "elsewhere")
    assert main([str(out), *TINY, "--seed", "1"]) == 2
    assert (out / name).is_symlink() and (tmp_path / "elsewhere").exists()


def test_names_in_a_marker_lead_nowhere(out, tmp_path):
    """Only what lies in the folder itself is looked at, whatever a marker lists."""
    (tmp_path / "precious").write_text("x")
    marker = json.loads((out / MARKER).read_text())
    marker["files"]["../precious"] = owned._stamp(tmp_path / "precious")
    (out / MARKER).write_text(json.dumps(marker))
    assert owned.discard(out) and (tmp_path / "precious").read_text() == "x"


@pytest.mark.parametrize("given", ("", "  "))
def test_an_empty_name_is_not_the_working_folder(tmp_path, monkeypatch, capsys, given):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(SystemExit) as ended:
        main([given, *TINY, "--json"])
    assert ended.value.code == 2 and "argument out: got '" in json.loads(capsys.readouterr().out)["cannot"]
    assert os.listdir(tmp_path) == ["here"] and os.listdir(tmp_path / "here") == []
