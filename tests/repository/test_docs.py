"""The code in README and docs runs as it stands, but for trainings, which are cut short."""

from __future__ import annotations

import ast
import importlib
import json
import re
from pathlib import Path

import pytest

import discrete_grpo

ROOT = Path(__file__).parents[2]
PAGES = [
    "README.md",
    "docs/tutorial.md",
    "docs/extending.md",
    "docs/importing.md",
    "docs/graphs.md",
    "docs/own-graphs.md",
    "docs/space.md",
    "docs/rewards.md",
    "docs/runs.md",
    "docs/training.md",
    "docs/large-data.md",
    "docs/offline.md",
    "docs/sft.md",
    "docs/options.md",
    "docs/benchmarking.md",
    "docs/optimising.md",
]


GATED = ("README.md", "docs/extending.md")
"""Pages whose code runs in ``make test`` too."""
LONG = re.compile(r"\bmax_steps=\d{2,}")


def blocks(page: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(encoding="utf-8"), re.M | re.S)


@pytest.mark.parametrize("page", [page if page in GATED else pytest.param(page, marks=pytest.mark.slow) for page in PAGES])
def test_code_runs_in_order(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    found = blocks(page)
    assert found
    names: dict[str, object] = {"__name__": "__main__"}
    for block in found:
        exec(compile(LONG.sub("max_steps=9", block), page, "exec"), names)


def test_tutorial_is_short() -> None:
    lines = [line for block in blocks("docs/tutorial.md") for line in block.splitlines() if line.strip()]
    assert len(lines) <= 60


@pytest.mark.parametrize("page", PAGES)
def test_public_names_are_imported_from_the_top(page: str) -> None:
    for node in (node for block in blocks(page) for node in ast.walk(ast.parse(block))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("discrete_grpo."):
            module = importlib.import_module(node.module or "")
            deep = [name.name for name in node.names if name.name in discrete_grpo.__all__]
            public = [name for name in deep if getattr(module, name) is getattr(discrete_grpo, name)]
            assert not public, f"{node.module}: import {public} from discrete_grpo"


def sections(page: Path) -> set[str]:
    """The fragments that lead to the headings of a page: lower case, without punctuation, with hyphens for spaces."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    titles = re.findall(r"^#+ +(.+?) *$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize(
    "page", ["README.md", "CONTRIBUTING.md", *(f"docs/{p.name}" for p in sorted((ROOT / "docs").glob("*.md")))]
)
def test_links_within_the_repository_exist(page: str) -> None:
    path = ROOT / page
    for target, fragment in re.findall(r"\]\(([^)#:]*)(?:#([^)]+))?\)", path.read_text(encoding="utf-8")):
        assert (path.parent / target).exists(), target
        if fragment:
            assert fragment in sections(path.parent / target if target else path), f"{target}#{fragment}"


def test_every_logged_metric_is_documented() -> None:
    from discrete_grpo import GRPOConfig, GRPOTrainer
    from discrete_grpo.metrics.molecules import sample_metrics
    from tests.toys import share_of_class_two, tiny_policy

    config = GRPOConfig(max_steps=1, num_generations=2, generation_batch_size=4, beta=0.1)
    trainer = GRPOTrainer(tiny_policy(), share_of_class_two, config, sample_metrics=lambda s: sample_metrics([None] * len(s)))
    line = trainer.train()[0]
    page = (ROOT / "docs/metrics.md").read_text(encoding="utf-8")
    for name in line:
        assert f"`{name.replace('share_of_class_two', 'NAME')}`" in page, name


def test_every_metric_of_samples_is_documented() -> None:
    from discrete_grpo.datasets.synthetic_graphs import make_splits
    from discrete_grpo.domains.images import Image
    from discrete_grpo.metrics import graphs, images, molecules, text

    drawn = [Image(1, 1, b"a"), Image(1, 1, b"b")]
    tables = [
        text.sample_metrics(["a cat"]),
        text.evaluate(["a cat"], {"a dog"}),
        images.sample_metrics(drawn),
        images.evaluate(drawn, [0, 0], set(drawn)),
        molecules.sample_metrics(["CCO"]),
        molecules.evaluate(["CCO"], {"CC"}),
        graphs.sample_metrics(["Bg"]),
        graphs.evaluate(["Bg"], graphs.GraphReference(make_splits("tree-16"), "tree")),
    ]
    page = (ROOT / "docs/metrics.md").read_text(encoding="utf-8")
    assert not [name for name in set().union(*tables) if f"`{name}`" not in page]


@pytest.mark.parametrize("run", ["text", "judge", "digits"])
def test_every_metric_of_pretraining_is_documented(run: str, tmp_path: Path) -> None:
    from discrete_grpo.recipes.pretraining.digits import PretrainDigitsRecipe, run_pretrain_digits
    from discrete_grpo.recipes.pretraining.judge import JudgeRecipe, run_judge
    from discrete_grpo.recipes.pretraining.text import EncoderSizes, PretrainTextRecipe, run_pretrain_text
    from discrete_grpo.training.config import PretrainConfig

    config = PretrainConfig(max_steps=1, batch_size=8, warmup_steps=0, log_steps=1, save_steps=1)
    tiny = EncoderSizes(layers=1, heads=1, width=8)
    folder = str(tmp_path)
    if run == "text":
        text = PretrainTextRecipe(
            output_dir=folder, num_lines=40, network=tiny, pretrain=config, evaluation_samples=4, block_size=40
        )
        run_pretrain_text(text)
    elif run == "judge":
        judge = JudgeRecipe(output_dir=folder, num_lines=40, network=tiny, pretrain=config, evaluation_samples=4, block_size=40)
        run_judge(judge)
    else:
        loops = dict.fromkeys(("autoencoder", "classifier", "pretrain"), config)
        run_pretrain_digits(PretrainDigitsRecipe(output_dir=folder, layers=1, heads=1, width=8, evaluation_samples=4, **loops))  # type: ignore[arg-type]
    found = [path.read_text(encoding="utf-8").splitlines() for path in tmp_path.rglob("metrics.jsonl")]
    names = {name for lines in found for line in lines for name in json.loads(line)}
    page = (ROOT / "docs/metrics.md").read_text(encoding="utf-8")
    assert len(names) > 5
    assert not [name for name in names if f"`{name}`" not in page]


@pytest.mark.parametrize("page", ["README.md", *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md")))])
def test_no_placeholder_is_left(page: str) -> None:
    assert "@@" not in (ROOT / page).read_text(encoding="utf-8")
