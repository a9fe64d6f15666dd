"""The floors of docs/architecture.md, held by reading the imports of every module: an import only goes down."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# Lowest first. A room may import rooms of lower floors, and those before it on its own floor.
FLOORS = [
    ["core", "domains"],
    ["diffusion", "models", "datasets"],
    ["runs", "policies", "metrics", "rewards", "importers"],
    ["training"],
    ["recipes", "testing", "benchmarking"],
    ["cli"],
]
ORDER = {room: place for place, room in enumerate(room for floor in FLOORS for room in floor)}
FAMILIES = {"domains", "policies", "models", "datasets", "metrics", "rewards", "diffusion"}
"""Rooms that know what the samples are; the trainer and the core learn of them through protocols only."""

# Libraries that only these modules may import.
KEEPERS = {
    "rdkit": {
        "domains.conformers",
        "domains.force_field",
        "domains.molecules",
        "domains.smiles",
        "domains.molecule_features",
        "domains.molecule_mutations",
        "domains.molecule_operators",
        "domains.fingerprints",
        "domains.molecule_properties",
        "domains.random_smiles",
        "domains.sample_text",
        "domains.spatial_files",
        "domains.spatial_geometry",
        "domains.spatial_molecules",
        "datasets.molecules",
        "datasets.packing",
        "datasets.enumeration",
        "datasets.reading",
        "datasets.smiles",
        "datasets.spatial",
        "rewards.classifier",
        "rewards.components",
        "rewards.conditions",
        "rewards.diversity",
        "rewards.docking",
        "rewards.docking_targets",
        "rewards.fingerprint_models",
        "rewards.molecules",
        "rewards.nearest",
        "rewards.scoring_parts",
        "rewards.spatial",
        "rewards.transforms",
        "metrics.alerts",
        "metrics.molecule_suite",
        "metrics.molecule_table",
        "metrics.molecule_validity",
        "metrics.molecules",
        "metrics.nspdk",
        "runs.report.molecules",
        "runs.trackers",
    },
    "tensorboard": {"runs.trackers"},
    "wandb": {"runs.trackers"},
    "vina": {"rewards.docking"},
    "meeko": {"rewards.docking"},
    "skops": {"rewards.fingerprint_models"},
    "onnxruntime": {"rewards.fingerprint_models"},
    "ray": {"rewards.pool_backends"},
    "torch_geometric": {"datasets.convert", "datasets.graph_files", "datasets.pyg_graphs", "domains.named_graphs", "models.pyg"},
    "networkx": {
        "datasets.convert",
        "datasets.graph_files",
        "datasets.graph_tokens",
        "datasets.listed_graphs",
        "datasets.own_digraphs",
        "datasets.own_graphs",
        "domains.digraph6",
        "domains.digraph_validity",
        "domains.named_digraphs",
        "domains.named_graphs",
        "metrics.digraphs",
        "metrics.graph_classes",
        "recipes.kinds.graph_objects",
        "runs.report.arrows",
        "datasets.graph_splits",
        "datasets.synthetic_graphs",
        "domains.graph_statistics",
        "domains.isomorphism",
        "metrics.graph_suite",
        "metrics.graphs",
        "metrics.polygraph",
        "runs.report.graphs",
        "domains.graph_validity",
        "domains.graph6",
        "domains.graph_sequences",
        "domains.labelled_graphs",
    },
    "scipy": {"datasets.synthetic_graphs", "metrics.distances", "metrics.molecule_suite", "metrics.nspdk"},
    "pooch": {"datasets.downloads"},
    "jsonargparse": {"cli.parser", "cli.reward_spec"},
    "yaml": {"cli.parser", "cli.reward_spec"},
    "accelerate": {"training.distributed"},
    "safetensors": {"runs.checkpoint", "runs.weights", "importers.tensors"},
    "rich": {"runs.console"},
    "sklearn": {"datasets.digits", "rewards.regressor"},
    "skimage": {"rewards.images"},
    "selfies": {"policies.decoders"},
    "tokenizers": {"importers.huggingface"},
    "matplotlib": set[str](),
    "models": set[str](),  # only ever as discrete_grpo.models
    "datasets": set[str](),
}


TOP = ("__init__", "__main__")
"""Modules that stand in no room."""


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
                yield from (f"discrete_grpo.{a.name}" for a in node.names)
            else:
                yield str(node.module)


def violations(name: str, text: str) -> list[str]:
    """Describe each import that module ``name`` may not have; ``__init__`` and ``__main__`` of the package may import all rooms."""
    room = name.split(".")[0]
    if room not in ORDER and name not in (*TOP, "bundled.__init__"):
        return [f"{name} stands in no room: expected one of {', '.join(ORDER)}"]
    place, wrong = ORDER.get(room, len(ORDER)), []
    for found in imports(text):
        top, _, rest = found.partition(".")
        other = rest.split(".")[0]
        if found.startswith("relative"):
            wrong.append(f"{name}: {found}; write it in full")
        elif top == "discrete_grpo" and other != room:
            if ORDER.get(other, len(ORDER)) >= place:
                wrong.append(f"{name} -> {other or top}: the import goes up")
            elif room in ("core", "training") and other in FAMILIES:
                wrong.append(f"{name} -> {other}: the core and the trainer know no family")
        elif top != "discrete_grpo" and name not in KEEPERS.get(top, {name}):
            wrong.append(f"{name} -> {top}: only {', '.join(sorted(KEEPERS[top])) or 'nobody'} may")
        elif room == "core" and top not in sys.stdlib_module_names | {"torch", "jaxtyping", "discrete_grpo"}:
            wrong.append(f"{name} -> {top}: the core knows torch and the standard library only")
    return wrong


@pytest.mark.parametrize("name", sorted(FILES))
def test_imports_go_down(name: str) -> None:
    assert violations(name, FILES[name].read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("training.trainer", "from discrete_grpo.policies.graph import GraphPolicy", "know no family"),
        ("core.loss", "from discrete_grpo.domains.graphs import GraphBatch", "core.loss -> domains: the import goes up"),
        (
            "training.trainer",
            "def f():\n    from discrete_grpo.recipes import train",
            "training.trainer -> recipes: the import goes up",
        ),
        ("training.trainer", "from discrete_grpo import GRPOConfig", "the import goes up"),
        ("training.trainer", "import discrete_grpo", "the import goes up"),
        ("policies.graph", "from discrete_grpo.metrics.molecules import evaluate", "policies.graph -> metrics: the import goes up"),
        ("models.unet", "import discrete_grpo.datasets.text as t", "models.unet -> datasets: the import goes up"),
        ("core.loss", "from rdkit import Chem", "core.loss -> rdkit: only datasets"),
        ("core.categorical", "import numpy", "core.categorical -> numpy: the core"),
        ("policies.graph", "if True:\n    import torch_geometric.data", "policies.graph -> torch_geometric"),
        ("recipes.train", "from datasets import load_dataset", "recipes.train -> datasets: only nobody may"),
        ("cli.parser", "import models.graph_transformer", "cli.parser -> models: only nobody may"),
        ("diffusion.kernels", "from .schedules import Schedule", "write it in full"),
        ("novelties", "", "stands in no room"),
    ],
)
def test_the_check_sees_a_wrong_import(name: str, text: str, said: str) -> None:
    assert any(said in line for line in violations(name, text)), violations(name, text)


FOLDERS = {"kinds": ("families", "left_out", "reward_kinds"), "pretraining": None}
"""Folder in ``recipes``: which modules of the room, besides its own, its modules may import; None for all."""


def folder_violations(name: str, text: str) -> list[str]:
    """Imports of ``recipes`` that a module there may not have: pretraining is imported by itself alone, and kinds import few."""
    folder = parts[1] if len(parts := name.split(".")) > 2 else ""
    wrong = []
    for found in imports(text):
        if not found.startswith("discrete_grpo.recipes."):
            continue
        other = found.split(".")[2]
        allowed = FOLDERS.get(folder)
        if other != folder and (other == "pretraining" or (allowed is not None and other not in allowed)):
            wrong.append(f"{name} -> {found}: the import goes up within recipes")
    return wrong


@pytest.mark.parametrize("name", sorted(name for name in FILES if name.startswith("recipes.")))
def test_imports_within_recipes_go_down(name: str) -> None:
    assert folder_violations(name, FILES[name].read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("recipes.train", "from discrete_grpo.recipes.pretraining.fitting import fit"),
        ("recipes.kinds.graphs", "def f():\n    from discrete_grpo.recipes.sample import sample"),
        ("recipes.kinds.graphs", "from discrete_grpo.recipes.pretraining.molecule_files import data_file"),
    ],
)
def test_the_check_sees_an_import_that_goes_up_within_recipes(name: str, text: str) -> None:
    assert folder_violations(name, text)


def test_the_check_lets_the_pretraining_recipes_import_the_rest() -> None:
    text = "from discrete_grpo.recipes.sample import sample\nfrom discrete_grpo.recipes.kinds.graphs import shape_of"
    assert folder_violations("recipes.pretraining.fitting", text) == []


def test_the_check_lets_right_imports_pass() -> None:
    right = "import math\nimport torch\nfrom discrete_grpo.runs.files import remove\nfrom discrete_grpo.core.rollout import Rollout"
    assert violations("training.trainer", right) == []
    assert violations("rewards.molecules", "from rdkit import Chem\nfrom discrete_grpo.domains import molecules") == []


def test_every_module_is_read() -> None:
    assert {"cli.parser", "__init__", "policies.graph", "models.graph_transformer", "datasets.enumeration"} <= FILES.keys()
    assert {name for name in FILES if "." not in name} == set(TOP), "modules stand in rooms"
    stale = {keeper for keepers in KEEPERS.values() for keeper in keepers} - FILES.keys()
    assert not stale, "the allow-list names modules that are gone"


def test_nobody_imports_the_bare_folders() -> None:
    everything = [*FILES.values(), *(ROOT / "tests").rglob("*.py"), *(ROOT / "benchmarks").rglob("*.py")]
    bare = {
        str(p)
        for p in everything
        if re.search(r"(from|import|,)\s*(models|datasets)\b", text := p.read_text(encoding="utf-8"))  # for time: others have none
        for found in imports(text)
        if found.split(".")[0] in ("models", "datasets")
    }
    assert not bare


def test_importing_the_package_is_light() -> None:
    code = "import sys, discrete_grpo; print(*[m for m in ('torch', 'rdkit', 'torch_geometric', 'matplotlib') if m in sys.modules])"
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout.strip() == ""
