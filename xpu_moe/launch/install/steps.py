"""A recipe as the list of commands that installs it: printed by `--install-plan`, run by execute.py."""

from __future__ import annotations

import shlex
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from xpu_moe.launch.install import interpreters
from xpu_moe.launch.install.recipes import Recipe


@dataclass(frozen=True)
class Step:
    """One command. `otherwise` replaces it where pip's report (of the step before) shows a CUDA build of torch.

    `optional` steps may fail. `megabytes` is about what is downloaded, 0 for next to nothing. For what an environment
    holds (content.py): `same` stands for `argv` where its spelling decides nothing, `needs` are our requirements in it,
    `package` marks what installs this checkout.
    """

    title: str
    argv: tuple[str, ...]
    megabytes: int = 0
    otherwise: tuple[str, ...] = ()
    report: Path | None = None
    optional: bool = False
    same: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    package: bool = False

    def text(self) -> str:
        """For people: the title with the size, then what would be typed."""
        size = f"  (about {self.megabytes} MB)" if self.megabytes else ""
        lines = [f"# {self.title}{size}", shlex.join(self.argv)]
        if self.otherwise:
            lines += ["# … or, where that would be a CUDA build (it requires nvidia-*):", shlex.join(self.otherwise)]
        return "\n".join(lines)


def extras_of(project: Path, names: Sequence[str]) -> list[str]:
    """Base dependencies and the named extras in pyproject.toml."""
    table = tomllib.loads((project / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    optional = table["optional-dependencies"]
    return [*table["dependencies"], *(line for name in names for line in optional[name])]


def steps(recipe: Recipe, project: Path, venv: Path, python: str, extras: Sequence[str] = ()) -> list[Step]:
    """Every command, in order: the environment, torch, vLLM's needs, vLLM, this package."""
    work = venv / "install"
    wheel, own = work / "wheel", [str(venv / "bin" / "python"), "-m", "xpu_moe.launch.install.wheels"]
    pip = [str(venv / "bin" / "python"), "-m", "pip"]
    added = [word for index in recipe.indexes for word in ("--extra-index-url", index)]
    struck = ",".join(sorted(recipe.leave_out))
    size = recipe.megabytes
    plan = [
        Step(
            "the environment", (python, "-m", "venv", str(venv)), same=("venv", interpreters.kind_of(python), str(venv))
        ),
        # From 23.3 on pip resolves from metadata alone; an older one downloads every candidate to look inside.
        Step("a pip that can look before it downloads", (*pip, "install", "-q", "pip>=23.3"), optional=True),
        Step(
            "vLLM's wheel",
            (
                *pip, "download", "-q", "--no-deps", "-d", str(wheel), *(["--pre"] if recipe.pre else []),
                *(["--index-url", recipe.vllm_index] if recipe.vllm_index else []), recipe.vllm,
            ),
            size["vllm"],
        ),
    ]  # fmt: skip
    if recipe.torch:
        report = work / "torch.json"
        plan += [
            Step(
                "which build of torch is that?",
                (*pip, "install", "-q", "--dry-run", "--no-deps", "--ignore-installed", "--report", str(report),
                 recipe.torch),
            ),
            Step(
                "torch",
                (*pip, "install", "-q", recipe.torch),
                size["torch"],
                (*pip, "install", "-q", "--extra-index-url", recipe.cpu_index, recipe.cpu_torch),
                report,
            ),
        ]  # fmt: skip
    ours = extras_of(project, (*recipe.extras, *extras))
    listed, report, pins = work / "needs.txt", work / "needs.json", work / "pins.txt"
    plan += [
        Step("what vLLM requires", (*own, "needs", str(wheel), str(listed), "--leave-out", struck)),
        Step(
            "which versions those are",
            (*pip, "install", "-q", "--dry-run", "--report", str(report), *added, "-r", str(listed), *ours),
            needs=tuple(ours),
        ),
        Step("the list without what is not used", (*own, "pin", str(report), str(pins), "--leave-out", struck)),
        Step(
            "vLLM's needs and ours",
            (*pip, "install", "-q", "--no-deps", *added, "-r", str(pins)),
            size["needs"] + size["ours"] + (0 if recipe.torch else size["torch"]),
        ),
        Step("vLLM", (*pip, "install", "-q", "--no-deps", "--no-index", "--find-links", str(wheel), *_exact(recipe))),
    ]
    if recipe.after:
        plan.append(Step("Triton", (*pip, "install", "-q", *added, *recipe.after), size.get("after", 0)))
    if recipe.alias:
        plan += [
            Step(
                "the metadata `vllm` that vLLM's own command asks for",
                (*own, "alias", "vllm", recipe.alias, recipe.vllm, str(work)),
            ),
            Step(
                "… installed",
                (*pip, "install", "-q", "--no-deps", "--no-index", "--find-links", str(work), f"vllm=={recipe.alias}"),
            ),
        ]
    plan.append(Step("this package", (*pip, "install", "-q", "--no-deps", "-e", str(project)), package=True))
    return plan


def _exact(recipe: Recipe) -> tuple[str, ...]:
    return (*(["--pre"] if recipe.pre else []), recipe.vllm)


def text(plan: Sequence[Step]) -> str:
    """The whole plan for people."""
    total = sum(step.megabytes for step in plan)
    return "\n".join([*(step.text() for step in plan), f"# about {total} MB are downloaded; pip keeps the wheels"])
