"""Imported policies of molecules read SMILES in the form of their training data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from discrete_grpo import PretrainConfig, SFTRecipe, load_policy
from discrete_grpo.importers import import_digress
from discrete_grpo.importers.graph_data import known_data
from discrete_grpo.recipes.loading import load
from discrete_grpo.recipes.pretraining.sft import run_sft
from discrete_grpo.recipes.pretraining.sft_data import prepare
from discrete_grpo.recipes.pretraining.sft_files import samples_of
from discrete_grpo.runs.checkpoint import save
from tests.imported import GDPO, digress_of


def test_a_policy_with_aromatic_bonds_is_trained_further_on_smiles(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = digress_of("zinc-gdpo", GDPO)
    torch.save({"model." + name: tensor for name, tensor in made[0].items()}, tmp_path / "gdpo.pt")
    found = import_digress(tmp_path / "gdpo.pt", dataset="zinc-gdpo", num_steps=3)
    saved = save(tmp_path / "policy", found.policy, metadata=found.metadata)
    (tmp_path / "data.smi").write_text("Cc1ccccc1\nc1ccsc1\nCCO\nc1cc[nH]c1\nc1ccncc1\n")
    few = PretrainConfig(max_steps=2, batch_size=2, warmup_steps=0, save_steps=2, log_steps=1)
    recipe = SFTRecipe(
        str(saved), str(tmp_path / "data.smi"), str(tmp_path / "run"), pretrain=few, max_broken=0.3, evaluation_samples=0
    )
    run_sft(recipe)
    assert "1 of 5 samples cannot be drawn by the policy, such as 'c1cc[nH]c1'; they are left out" in capsys.readouterr().err
    trained = load_policy(tmp_path / "run")
    assert trained.node_counts[3] > 0
    assert int((trained.encode(["c1ccncc1"]).edges == 4).sum()) == 12
    fixed = load(str(tmp_path / "run")).family.condition(trained, found.metadata, {"scaffold": "c1cc[nH]c1"})["fixed"]
    assert sorted(fixed.edges.values()) == [0] * 5 + [4] * 5


def test_a_class_of_hydrogens_that_does_not_occur_is_not_read(tmp_path: Path) -> None:
    made = digress_of("moses", (8, 5))
    torch.save({"model." + name: tensor for name, tensor in made[0].items()}, tmp_path / "moses.pt")
    found = import_digress(tmp_path / "moses.pt", dataset="moses", num_steps=3)
    policy: Any = load_policy(save(tmp_path / "policy", found.policy, metadata=found.metadata))
    kinds: tuple[Any, ...] = (found.policy, policy)
    for one in kinds:
        graphs = one.encode(["CC(C)Cc1ccc(cc1)C(C)C(=O)O"])
        assert graphs.sizes.tolist() == [15]
        assert int((graphs.nodes == known_data("moses").atoms.index("H")).sum()) == 0
        assert one.can_draw("CC(C)Cc1ccc(cc1)C(C)C(=O)O")


def test_further_training_leaves_out_graphs_that_the_network_cannot_read(tmp_path: Path) -> None:
    made = digress_of("qm9", (4, 4))
    torch.save({"model." + name: tensor for name, tensor in made[0].items()}, tmp_path / "qm9.pt")
    found = import_digress(tmp_path / "qm9.pt", dataset="qm9", num_steps=3)
    saved = save(tmp_path / "policy", found.policy, metadata=found.metadata)
    (tmp_path / "data.smi").write_text("\n".join(["CCO", "CCN", "CCCO", "C" * 9, "C" * 12]))
    recipe = SFTRecipe(str(saved), str(tmp_path / "data.smi"), test_share=0.2)
    with pytest.raises(ValueError, match=r"1 of 5 samples cannot be drawn by the policy, such as 'CCCCCCCCCCCC'; expected at most"):
        prepare(recipe, load(recipe.policy), samples_of(recipe, load(recipe.policy)))
