"""Further training of a policy of every family on samples of a file: what is kept, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import networkx as nx
import pytest
import torch
from torch import Tensor

from discrete_grpo import SFTRecipe, load_policy, pretrain
from discrete_grpo.datasets.spatial import conformers, spatial_statistics
from discrete_grpo.domains.graph6 import graph6
from discrete_grpo.domains.spatial_files import to_sdf
from discrete_grpo.domains.spatial_molecules import SpatialMolecule, to_cxsmiles
from discrete_grpo.domains.tokenizer import Tokenizer
from discrete_grpo.models.equivariant import EquivariantSizes
from discrete_grpo.recipes.pretraining.diffusion import DiffusionOptions
from discrete_grpo.recipes.pretraining.sft import run_sft
from discrete_grpo.recipes.pretraining.spatial import SpatialOptions, spatial_policy
from discrete_grpo.runs.checkpoint import Checkpoints, load_metadata, save
from discrete_grpo.runs.recorder import read_evaluation, read_metrics, read_samples
from discrete_grpo.training.lora import LoraOptions
from tests.recipes.pretraining.sft_cases import (
    CYCLES,
    FAMILIES,
    MOLECULES,
    RINGS,
    coloured,
    loop,
    made,
    plain,
    quick,
    texts,
    weights,
    written,
)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_a_policy_of_every_family_is_trained_further(family: str, tmp_path: Path) -> None:
    policy, data = FAMILIES[family](tmp_path)
    run = tmp_path / "run"
    config = loop(12, learning_rate=3e-3, ema_decay=0.0, save_steps=6)
    folder = run_sft(SFTRecipe(policy, data, str(run), test_share=0.3, pretrain=config, evaluation_samples=4))
    found, given = load_metadata(folder), load_metadata(policy)
    assert found["trained_from"] == policy
    assert {"kind", "labels", "statistics", "shape"} & set(given) <= {k for k in found if found[k] == given.get(k)}
    stages = read_evaluation(run)
    assert stages["after"]["test_loss"] < stages["before"]["test_loss"], (
        "held-out samples like those of the training are more probable"
    )
    lines = [line["eval/test_loss"] for line in read_metrics(run) if "eval/test_loss" in line]
    assert lines[-1] == stages["after"]["test_loss"]
    assert len(lines) == 2
    load_policy(folder)
    if family != "text":
        assert len(read_samples(run / "evaluation_before.csv.gz")["sample"]) == 4
    assert (run / "report.html").is_file()


@pytest.mark.parametrize("family", FAMILIES)
def test_it_begins_with_the_weights_of_the_policy(family: str, tmp_path: Path) -> None:
    policy, data = FAMILIES[family](tmp_path)
    before, now = weights(load_policy(policy)), weights(made(SFTRecipe(policy, data, test_share=0.3)).policy)
    assert list(now) == list(before)
    assert all(torch.equal(now[name], value) for name, value in before.items())


def test_a_resumed_run_has_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy, data = FAMILIES["smiles"](tmp_path)
    whole = SFTRecipe(policy, data, str(tmp_path / "whole"), test_share=0.3, pretrain=loop(4), evaluation_samples=4)
    stopped = SFTRecipe(policy, data, str(tmp_path / "stopped"), test_share=0.3, pretrain=loop(4), evaluation_samples=4)
    expected = weights(load_policy(run_sft(whole)))
    from discrete_grpo.training.pretrain import Pretrainer

    update, calls = Pretrainer._update, iter([False, False, False, True])

    def killed(self: Any, rows: Tensor) -> Any:
        if next(calls, False):
            raise KeyboardInterrupt
        return update(self, rows)

    with monkeypatch.context() as patch:
        patch.setattr(Pretrainer, "_update", killed)
        with pytest.raises(KeyboardInterrupt):
            run_sft(stopped)
    before = read_evaluation(tmp_path / "stopped")
    assert list(before) == ["before"]
    found = weights(load_policy(run_sft(stopped, resume=True)))
    assert all(torch.equal(found[name], value) for name, value in expected.items())
    assert read_evaluation(tmp_path / "stopped") == read_evaluation(tmp_path / "whole")
    assert read_evaluation(tmp_path / "stopped")["before"] == before["before"]


def test_samples_are_drawn_with_the_options_of_the_sampler(tmp_path: Path) -> None:
    policy, data = FAMILIES["smiles"](tmp_path)
    options: dict[str, Any] = {"test_share": 0.3, "pretrain": loop(1), "evaluation_samples": 6}
    folder = run_sft(SFTRecipe(policy, data, str(tmp_path / "run"), top_k=1, **options))
    for stage in ("before", "after"):
        assert len(set(read_samples(tmp_path / f"run/evaluation_{stage}.csv.gz")["sample"])) == 1  # the most probable one
    assert load_policy(folder).truncation.top_k == 1
    plain = run_sft(SFTRecipe(policy, data, str(tmp_path / "plain"), **options))
    assert load_policy(plain).truncation.top_k is None
    losses = [[row["test_loss"] for row in read_evaluation(tmp_path / run).values()] for run in ("run", "plain")]
    assert losses[0] == losses[1]  # a loss is that of the network
    with pytest.raises(ValueError, match=r"^num_steps: 5, expected none: TokenPolicy has no such setting"):
        run_sft(SFTRecipe(policy, data, str(tmp_path / "none"), num_steps=5, **options))


@pytest.mark.parametrize("family", ["smiles", "graphs"])
def test_adapters_alone_are_trained_and_are_merged_in_what_is_exported(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("discrete_grpo.recipes.pretraining.sft_data.NOISY_DRAWS", 1)  # for time
    policy, data = FAMILIES[family](tmp_path)
    given = weights(load_policy(policy))
    options: dict[str, Any] = {"test_share": 0.3, "evaluation_samples": 0}

    def run(name: str, steps: int = 4, r: int = 2, resume: bool = False, **changes: Any) -> dict[str, Tensor]:
        config = loop(steps, learning_rate=1e-2, ema_decay=0.9, min_lr_rate=1.0, save_total_limit=9, **changes)
        recipe = SFTRecipe(policy, data, str(tmp_path / name), pretrain=config, lora=LoraOptions(r=r), **options)
        return weights(load_policy(run_sft(recipe, resume=resume)))

    found = run("run")
    assert list(found) == list(given)
    changed = {name for name in given if not torch.equal(found[name], given[name])}
    assert changed
    assert all(name.endswith("weight") and found[name].ndim == 2 for name in changed)  # biases and norms are frozen
    whole = run("whole", r=0)
    assert changed < {name for name in given if not torch.equal(whole[name], given[name])}
    before = [read_evaluation(tmp_path / name)["before"]["test_loss"] for name in ("run", "whole")]
    assert before[0] == before[1]
    run("parts", 2)
    assert all(torch.equal(value, found[name]) for name, value in run("parts", 4, resume=True).items())
    metric: dict[str, Any] = {"metric_for_best_model": "loss", "greater_is_better": True}
    best = run("best", load_best_model_at_end=True, **metric)
    checkpoint = Checkpoints(tmp_path / "best", **metric).best()
    assert checkpoint is not None
    assert all(torch.equal(value, best[name]) for name, value in weights(load_policy(checkpoint)).items())


# -- what is refused


def test_samples_that_cannot_be_drawn_are_left_out_and_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    policy, _ = FAMILIES["smiles"](tmp_path)
    data = written(tmp_path / "mixed.smi", [*RINGS, "CCBr"])
    found = made(SFTRecipe(policy, data, test_share=0.3, max_broken=0.2))
    assert found.count == len(RINGS)
    told = capsys.readouterr().err
    assert f"{data}: 1 of 9 samples cannot be drawn by the policy, such as 'CCBr'; they are left out" in told
    with pytest.raises(ValueError, match=r"1 of 9 samples cannot .*; expected at most a share of max_broken \(0.1\)$"):
        made(SFTRecipe(policy, data, test_share=0.3, max_broken=0.1))


def test_a_graph_without_nodes_is_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    policy = plain(tmp_path / "policy", [nx.path_graph(3), nx.path_graph(4)])
    data = written(tmp_path / "data.g6", ["?", *map(graph6, CYCLES)])
    assert made(SFTRecipe(policy, data, test_share=0.3, max_broken=0.5)).count == len(CYCLES)
    assert "1 of 5 samples cannot be drawn by the policy, such as '?'; they are left out" in capsys.readouterr().err


def test_broken_records_in_space_are_counted(tmp_path: Path) -> None:
    policy, data = FAMILIES["molecules in space"](tmp_path)
    text = Path(data).read_text()
    Path(data).write_text(text + text.split("$$$$")[0].replace(" V2000", " V2OOO") + "$$$$\n")
    assert made(SFTRecipe(policy, data, test_share=0.3, max_broken=0.3)).count == 4
    with pytest.raises(
        ValueError, match=r"1 of 5 records are no molecule in space, expected at most a share of max_broken \(0.1\)$"
    ):
        made(SFTRecipe(policy, data, test_share=0.3, max_broken=0.1))


@pytest.mark.parametrize("aromatic", [False, True])
def test_bonds_in_space_are_read_as_the_policy_was_trained_on_them(aromatic: bool, tmp_path: Path) -> None:
    known, given = (conformers(["Cc1ccccc1", "c1ccccc1", "CCO"], aromatic=kind).molecules for kind in (aromatic, not aromatic))
    stats = spatial_statistics(known)
    sizes = EquivariantSizes(layers=1, heads=2, width=16, edge_width=8, global_width=8)
    policy = save(
        tmp_path / "policy",
        spatial_policy(stats, sizes, SpatialOptions(num_steps=2)),
        metadata={"kind": "spatial", "statistics": stats.to_json()},
    )
    data = written(tmp_path / "data.smi", [to_cxsmiles(one) for one in given])
    found = made(SFTRecipe(str(policy), data, test_share=0.4))
    wanted = {len(one): sorted(order for _, _, order in one.bonds) for one in known}
    assert {len(one): sorted(order for _, _, order in one.bonds) for one in found.samples}.items() <= wanted.items()
    assert any(wanted[len(one)].count(4) == 6 * aromatic for one in found.samples)
    assert found.count == 3


def test_molecules_in_space_that_are_none_or_lack_hydrogens_are_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    policy, _ = FAMILIES["molecules in space"](tmp_path)
    good = list(conformers(MOLECULES).molecules)
    bare = conformers(["CCO"], hydrogens=False).molecules[0]
    broken = SpatialMolecule(("O", "H"), (0, 0), ((0, 1, 3),), ((0.0, 0.0, 0.0), (0.0, 0.0, 1.0)))
    (tmp_path / "more.sdf").write_text(to_sdf([*good, bare, broken]))
    recipe = SFTRecipe(policy, str(tmp_path / "more.sdf"), test_share=0.3, max_broken=0.2)
    assert made(recipe).count == len(good)
    assert "2 of 12 records do not sanitise or lack hydrogens; they are left out" in capsys.readouterr().err
    with pytest.raises(ValueError, match="2 of 12 records are no molecule in space, expected at most"):
        made(replace(recipe, max_broken=0.1))


def test_a_wrong_name_of_a_metric_costs_no_update(tmp_path: Path) -> None:
    policy, data = FAMILIES["smiles"](tmp_path)
    config = loop(3, metric_for_best_model="eval/test_los")
    with pytest.raises(ValueError, match=r"^metric_for_best_model: 'eval/test_los' is not logged; did you mean 'eval/test_loss'\?"):
        run_sft(SFTRecipe(policy, data, str(tmp_path / "run"), test_share=0.3, pretrain=config, evaluation_samples=0))
    assert not (tmp_path / "run/checkpoints").exists()


def test_larger_molecules_than_the_policy_drew_are_trained_on_by_graphs_and_left_out_by_texts(
    small_molecules: str, tmp_path: Path
) -> None:
    data = written(tmp_path / "long.smi", ["CCCCCCCCCCCCCCCO", "CCO", "CCN"])
    assert made(SFTRecipe(small_molecules, data, test_share=0.3)).policy.max_nodes == 16
    assert made(SFTRecipe(texts(tmp_path / "texts"), data, test_share=0.3, max_broken=0.5)).count == 2


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"data": " "}, "data: ' ', expected the name of a file of samples"),
        ({}, "data: None, expected the name of a file of samples"),
        ({"data": "none.smi"}, "data: 'none.smi' is no file"),
        ({"policy": "digits", "data": "x.smi"}, "policy: 'digits' makes samples of the kind images, expected one of graphs,"),
        ({"policy": "tree-16", "data": "tree-61"}, "data: 'tree-61', expected one of planar-16"),
        ({"data": "x.smi", "node_attribute": "colour"}, "node_attribute: 'colour', expected none with molecules"),
        ({"policy": "tree-16", "data": "tree-16", "smiles_column": "s"}, "smiles_column: 's', expected none with graphs"),
        ({"policy": "tree-16", "data": "sets.json"}, "data: sets.json has classes of nodes or edges, expected none, as"),
        (
            {"policy": "qm9-3d", "data": "x.smi"},
            "data: 'x.smi' holds no sample of the kind spatial, expected a file of molecules with positions (.sdf, .xyz, .smi); "
            "plain SMILES have none, so make conformers first, for example by RDKit's EmbedMolecule",
        ),
        (
            {"policy": "qm9-3d", "data": "x.csv"},
            "data: x.csv, expected molecules with positions: .sdf, .xyz, .smi, or a table with a column 'cxsmiles' or 'sample'; "
            "plain SMILES have none, so make conformers first, for example by RDKit's EmbedMolecule",
        ),
        (
            {"policy": "smiles-zinc", "data": "x.smi", "marginals": "data"},
            "marginals: 'data', expected 'policy' with smiles-zinc",
        ),
    ],
)
def test_it_says_in_one_line_what_does_not_fit(
    changes: dict[str, Any], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    written(Path("x.smi"), MOLECULES)
    written(Path("x.csv"), ["smiles", *MOLECULES])
    from discrete_grpo.datasets.graph_files import to_node_link

    Path("sets.json").write_bytes(to_node_link(coloured()))
    with pytest.raises((ValueError, FileNotFoundError)) as caught:
        run_sft(SFTRecipe(pretrain=loop(1), evaluation_samples=0, **changes))
    assert str(caught.value).startswith(said)
    assert "\n" not in str(caught.value)
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"test_share": 1.0}, "test_share: 1.0, expected more than 0 and less than 1"),
        ({"max_broken": 1.5}, "max_broken: 1.5, expected 0 to 1"),
        ({"marginals": "own"}, "marginals: 'own', expected one of policy, data"),
        ({"lora": {"r": 2}}, "lora: {'r': 2}, expected a LoraOptions"),
        ({"top_k": 0}, "top_k: 0, expected at least 1"),
        ({"policy": 3}, "policy: a int, expected the name of a policy or its folder"),
    ],
)
def test_settings_out_of_their_range_are_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=f"^{said}"):
        SFTRecipe(**changes)


def test_masked_diffusion_has_no_frequencies(tmp_path: Path) -> None:
    policy = plain(tmp_path / "policy", [nx.path_graph(4)], DiffusionOptions(num_steps=2, noise="absorbing"))
    with pytest.raises(ValueError, match=r"^marginals: 'data', expected 'policy' .*, which ends in no data class"):
        made(SFTRecipe(policy, "tree-16", marginals="data"))


def test_a_policy_with_other_conditions_is_refused(tmp_path: Path) -> None:
    from discrete_grpo.models.gpt import GPT, GPTConfig
    from discrete_grpo.policies.tokens import TokenPolicy

    letters = Tokenizer(("a", "b"))
    given = TokenPolicy(GPT(GPTConfig(len(letters), 6, layers=1, heads=2, width=8)), letters, max_length=6, prompt="label")
    policy = str(save(tmp_path / "policy", given, metadata={"kind": "samples"}))
    with pytest.raises(ValueError, match=r"is conditioned on 'label', which a file of samples does not tell$"):
        made(SFTRecipe(policy, written(tmp_path / "data.txt", ["ab", "ba", "aab"]), test_share=0.4))


def test_values_are_given_from_python(tmp_path: Path) -> None:
    policy, _ = FAMILIES["smiles"](tmp_path)
    recipe = quick(SFTRecipe(policy, output_dir=str(tmp_path / "run"), test_share=0.3))
    folder = pretrain(recipe, data=RINGS)
    assert load_metadata(folder)["data"] == {"name": "data", "licence": "unknown", "samples": len(RINGS)}
    assert (tmp_path / "run/data.smi").read_text().split() == list(RINGS)
    assert pretrain(recipe, resume=True) == folder


def test_a_share_of_exactly_max_broken_is_left_out(tmp_path: Path) -> None:
    data = written(tmp_path / "mixed.smi", [*RINGS[:3], "CCBr"])
    found = made(SFTRecipe(texts(tmp_path / "policy"), data, test_share=0.3, max_broken=0.25))
    assert found.count == 3
