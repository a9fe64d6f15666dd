"""The floors of the architecture, held by reading the imports of every module: an arrow only goes down."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

# Lowest first. A unit may import what stands on a lower step, and itself; `|` in the plan is two units of one step.
FLOORS: list[list[set[str]]] = [
    [
        {
            "atomic",
            "averaging",
            "categorical",
            "config",
            "graph",
            "import_path",
            "interrupt",
            "networks",
            "pixels",
            "precision",
            "tokens",
            "truncation",
        },
        {"graph_kl", "rollout"},
    ],
    [
        {
            "advantages",
            "scoring",
            "diffusion",
            "chemistry",
            "topology",
            "models",
            "kl_estimators",
            "entropy",
            "reference",
            "timesteps",
            "compiled",
            "bf16",
            "lora",
        },
        {"objective", "generation", "descriptors", "isomorphism"},
        {"shapes", "windows", "processes"},
        {"updates", "optimisation"},
        {"datasets"},
    ],
    [
        {"described", "folders", "randomness"},
        {"checkpoint", "reporting", "policies", "metrics", "decoders"},
        {"rewards", "refinement", "pending"},
        {"replay"},
        {"shards"},
        {"drawing"},
        {"run_log", "run_state"},
        {"trainer", "pretrain"},
        {"testing"},
    ],
    [
        {"__init__"},
        {"molecular"},
        {"smiles", "filling", "images", "plain_graphs", "importers"},
        {"textual"},
        {"families", "accounts"},
        {"recipes", "searching"},
    ],
    [{"suggestions"}, {"parsing"}, {"cli"}],
]
STEP = {unit: k for k, units in enumerate(step for floor in FLOORS for step in floor) for unit in units}
FLOOR_0 = {unit for step in FLOORS[0] for unit in step}

# Beyond the floors: what a unit may never reach, although it stands lower.
NEVER = {
    "trainer": {"policies", "models", "rewards", "metrics", "diffusion", "datasets", "chemistry", "graph", "tokens", "pixels"},
    "pretrain": {"policies", "models", "rewards", "metrics", "diffusion", "datasets", "chemistry", "graph", "tokens", "pixels"},
    "updates": {"policies", "models", "rewards", "metrics", "diffusion", "datasets", "chemistry", "graph", "tokens", "pixels"},
    "generation": {"policies", "models", "rewards", "metrics", "diffusion", "datasets", "chemistry", "graph", "tokens", "pixels"},
    "refinement": {"policies", "models", "rewards", "metrics", "diffusion", "datasets", "chemistry", "graph", "tokens", "pixels"},
    "testing": {"policies", "models", "rewards", "metrics", "diffusion", "datasets", "chemistry", "tokens"},
    "policies": {"models", "chemistry", "datasets", "objective", "advantages", "scoring"},
    "rewards": {"metrics", "policies", "models", "diffusion", "objective", "advantages"},
    "metrics": {"rewards", "policies", "models", "diffusion", "objective", "advantages"},
    "models": {"diffusion", "rollout", "categorical", "config"},
    "objective": {"graph", "config", "tokens", "truncation"},
    "advantages": {"graph", "config", "tokens", "truncation"},
    "datasets": {"models", "diffusion", "objective", "advantages", "scoring"},
    "reporting": {"chemistry", "datasets", "models", "diffusion", "objective", "advantages", "rollout"},
    "checkpoint": {"models", "diffusion", "chemistry", "datasets", "rollout", "objective", "advantages"},
}

# Libraries that only these modules may import; the rest of the house does not know them.
KEEPERS = {
    "rdkit": {
        "chemistry",
        "datasets.molecules",
        "datasets.enumeration",
        "datasets.reading",
        "datasets.smiles",
        "rewards.conditions",
        "rewards.diversity",
        "rewards.docking",
        "rewards.molecules",
        "metrics.molecules",
        "reporting.draw",
        "reporting.trackers",
    },
    "tensorboard": {"reporting.trackers"},
    "wandb": {"reporting.trackers"},
    "vina": {"rewards.docking"},
    "meeko": {"rewards.docking"},
    "ray": {"rewards.workers"},
    "torch_geometric": {"datasets.convert"},
    "networkx": {
        "datasets.convert",
        "datasets.synthetic_graphs",
        "descriptors",
        "isomorphism",
        "metrics.graphs",
        "reporting.draw_graphs",
        "shapes",
        "topology",
    },
    "scipy": {"datasets.synthetic_graphs"},
    "pooch": {"datasets.downloads"},
    "jsonargparse": {"cli", "parsing"},
    "yaml": {"parsing"},
    "accelerate": {"processes"},
    "safetensors": {"checkpoint", "importers.tensors"},
    "rich": {"reporting.console"},
    "sklearn": {"datasets.digits"},
    "skimage": {"rewards.images"},
    "selfies": {"decoders"},
    "transformers": {"models.huggingface"},
    "tokenizers": {"importers.huggingface"},
    "matplotlib": set[str](),
    "models": set[str](),  # only ever as discrete_grpo.models
    "datasets": set[str](),
}


def module_files() -> dict[str, Path]:
    """Module name under ``discrete_grpo`` -> file; the links are not followed, the folders themselves are read."""
    files = [p for p in (ROOT / "discrete_grpo").rglob("*.py") if not {"models", "datasets"} & set(p.relative_to(ROOT).parts[1:2])]
    found = {".".join(p.relative_to(ROOT / "discrete_grpo").with_suffix("").parts): p for p in files}
    for folder in ("models", "datasets"):
        found |= {".".join(p.relative_to(ROOT).with_suffix("").parts): p for p in (ROOT / folder).rglob("*.py")}
    return found


FILES = module_files()


def imports(text: str) -> Iterator[str]:
    """Every module that a text imports, at any depth; ``from discrete_grpo import x`` counts as ``discrete_grpo.x``."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                yield f"relative import of {node.module}"
            elif node.module == "discrete_grpo":
                yield from (f"discrete_grpo.{a.name}" if f"{a.name}" in STEP else "discrete_grpo.__init__" for a in node.names)
            else:
                yield str(node.module)


def violations(name: str, text: str) -> list[str]:
    """What module ``name`` may not import, in words."""
    unit = name.split(".")[0]
    if unit in ("bundled", "presets"):
        return [f"{name} imports {found}; it only holds data" for found in imports(text)]
    if unit not in STEP:
        return [f"{name} stands on no floor: give it one here and in the plan"]
    wrong = []
    for found in imports(text):
        top, _, rest = found.partition(".")
        if found.startswith("relative"):
            wrong.append(f"{name}: {found}; write it in full")
        elif top == "discrete_grpo":
            other = rest.split(".")[0] or "__init__"
            if other != unit and STEP.get(other, 99) >= STEP[unit]:
                wrong.append(f"{name} -> {other}: the arrow goes up or sideways")
            if other in NEVER.get(unit, ()):
                wrong.append(f"{name} -> {other}: not in this house")
        elif name not in KEEPERS.get(top, {name}):
            wrong.append(f"{name} -> {top}: only {', '.join(sorted(KEEPERS[top])) or 'nobody'} may")
        elif unit in FLOOR_0 and top not in sys.stdlib_module_names | {"torch", "jaxtyping"}:
            wrong.append(f"{name} -> {top}: floor 0 knows torch and the standard library only")
    return wrong


@pytest.mark.parametrize("name", sorted(FILES))
def test_arrows_go_down(name: str) -> None:
    assert violations(name, FILES[name].read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("trainer", "from discrete_grpo.policies.graph import GraphPolicy", "trainer -> policies: not in this house"),
        ("trainer", "def f():\n    from discrete_grpo import recipes", "trainer -> recipes: the arrow goes up"),
        ("trainer", "from discrete_grpo import GRPOConfig", "trainer -> __init__: the arrow goes up"),
        ("trainer", "import discrete_grpo", "trainer -> __init__: the arrow goes up"),
        ("policies.graph", "import discrete_grpo.models.graph_transformer as g", "policies.graph -> models: not in this house"),
        (
            "rewards.molecules",
            "from discrete_grpo.metrics.molecules import evaluate",
            "rewards.molecules -> metrics: not in this house",
        ),
        ("metrics.molecules", "from discrete_grpo.rewards import combine", "metrics.molecules -> rewards: the arrow goes up"),
        ("models.unet", "from discrete_grpo.diffusion.kernels import Kernel", "models.unet -> diffusion"),
        ("objective", "from discrete_grpo.graph import GraphBatch", "objective -> graph: not in this house"),
        ("objective", "from rdkit import Chem", "objective -> rdkit: only chemistry"),
        ("categorical", "import numpy", "categorical -> numpy: floor 0"),
        ("policies.graph", "if True:\n    import torch_geometric.data", "policies.graph -> torch_geometric"),
        ("recipes", "from datasets import load_dataset", "recipes -> datasets: only nobody may"),
        ("cli", "import models.graph_transformer", "cli -> models: only nobody may"),
        ("diffusion.kernels", "from .schedules import Schedule", "write it in full"),
        ("novelties", "", "stands on no floor"),
        ("presets", "import os", "it only holds data"),
    ],
)
def test_the_check_sees_a_wrong_arrow(name: str, text: str, said: str) -> None:
    assert any(said in line for line in violations(name, text)), violations(name, text)


def test_the_check_lets_right_arrows_pass() -> None:
    right = "import math\nimport torch\nfrom discrete_grpo.config import GRPOConfig\nfrom discrete_grpo.rollout import Rollout"
    assert violations("trainer", right) == []
    assert violations("rewards.molecules", "from rdkit import Chem\nfrom discrete_grpo import chemistry") == []


def test_every_module_is_read() -> None:
    assert {"cli", "__init__", "policies.graph", "models.graph_transformer", "datasets.enumeration"} <= FILES.keys()
    assert all(STEP[unit] < STEP["cli"] for unit in STEP if unit != "cli")
    assert NEVER.keys() | {u for units in NEVER.values() for u in units} <= STEP.keys()
    stale = {keeper for keepers in KEEPERS.values() for keeper in keepers} - FILES.keys()
    assert not stale, "the allow-list names modules that are gone"


def test_nobody_imports_the_bare_folders() -> None:
    everything = [*FILES.values(), *(ROOT / "tests").glob("*.py"), *(ROOT / "benchmarks").rglob("*.py")]
    bare = {
        str(p)
        for p in everything
        for found in imports(p.read_text(encoding="utf-8"))
        if found.split(".")[0] in ("models", "datasets")
    }
    assert not bare


def test_importing_the_package_is_light() -> None:
    code = "import sys, discrete_grpo; print(*[m for m in ('rdkit', 'torch_geometric', 'matplotlib') if m in sys.modules])"
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout.strip() == ""
