"""Presets of drug-like molecules: pretraining on a file makes a policy that the preset of GRPO trains."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from discrete_grpo import load_policy
from discrete_grpo.cli import main
from discrete_grpo.runs.checkpoint import load_metadata

SMILES = ["CC(=O)[O-]", "C[N+](C)(C)C", "c1ccccc1Cl", "CC(=O)NC1CC1", "CCS", "C#N", "FC(F)F", "CCBr"]
TINY = ["layers=1", "heads=2", "width=8", "edge_width=4", "global_width=4"]


@pytest.mark.parametrize("preset", ["zinc-graph", "zinc-graph-small"])
def test_a_policy_is_pretrained_and_trained(preset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    too_large = "C" * 39
    Path("data.smi").write_text("\n".join([*SMILES * 2, too_large]) + "\n")
    tiny = [f"--network.{size}" for size in TINY]
    short = ["--pretrain.max_steps=2", "--pretrain.batch_size=4", "--evaluation_samples=0"]
    assert main(["pretrain", preset, "--data=data.smi", *tiny, *short]) == 0
    policy = load_policy(f"runs/{preset}")
    network = policy.network.config
    assert (network.connectivity, network.log_time, network.walk_length) == (True, True, 12)
    assert (policy.num_steps, policy.precondition) == (50, True)
    statistics = load_metadata(f"runs/{preset}/policy")["statistics"]
    assert {"O-1", "N+1", "Cl", "Br"} <= set(statistics["vocabulary"])  # charges are a part of the atom type
    assert len(statistics["node_counts"]) == 8  # at most 7 atoms: the molecule of 39 was left out
    grpo = ["max_steps=1", "num_generations=2", "generation_batch_size=4", "warmup_steps=0"]
    options = [f"--policy=runs/{preset}", "--num_steps=3", "--evaluation_samples=2", *(f"--grpo.{o}" for o in grpo)]
    assert main(["train", "zinc-graph-qed", *options]) == 0
    line = json.loads(Path("runs/zinc-graph-qed/metrics.jsonl").read_text().splitlines()[0])
    assert line["kl"] == 0.0  # against the policy before training
