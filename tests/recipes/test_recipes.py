"""Recipes: molecule policies from statistics, scaffolds, finding checkpoints, a whole run and all of its files."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from rdkit import Chem

from discrete_grpo import GRPOConfig, PretrainConfig
from discrete_grpo.core.rollout import group_contexts
from discrete_grpo.datasets.enumeration import load_enumerated
from discrete_grpo.datasets.molecules import statistics
from discrete_grpo.diffusion.flow import FlowEuler
from discrete_grpo.domains.molecules import Vocabulary
from discrete_grpo.models.graph_transformer import NetworkSizes
from discrete_grpo.recipes.evaluate import evaluate_file
from discrete_grpo.recipes.families import FileOptions, SamplerOptions
from discrete_grpo.recipes.kinds.molecules import scaffold_sites
from discrete_grpo.recipes.loading import load, load_policy, with_sampler
from discrete_grpo.recipes.pretraining.diffusion import DiffusionOptions
from discrete_grpo.recipes.pretraining.digits import PretrainDigitsRecipe
from discrete_grpo.recipes.pretraining.graph_sequences import PretrainGraphSequencesRecipe
from discrete_grpo.recipes.pretraining.graphs import PretrainGraphsRecipe
from discrete_grpo.recipes.pretraining.judge import JudgeRecipe
from discrete_grpo.recipes.pretraining.molecules import PretrainRecipe, molecule_policy, run_pretrain
from discrete_grpo.recipes.pretraining.pretrain import pretrain
from discrete_grpo.recipes.pretraining.sft import SFTRecipe
from discrete_grpo.recipes.pretraining.smiles import PretrainSmilesRecipe
from discrete_grpo.recipes.pretraining.spatial import PretrainSpatialRecipe
from discrete_grpo.recipes.pretraining.text import PretrainTextRecipe
from discrete_grpo.recipes.sample import sample, sample_file, sample_lines
from discrete_grpo.recipes.search import SearchRecipe
from discrete_grpo.recipes.train import TrainRecipe, run_train, train
from discrete_grpo.rewards.molecules import qed, validity
from discrete_grpo.runs import checkpoint
from discrete_grpo.runs.checkpoint import CheckpointError, load_metadata, save
from discrete_grpo.runs.checkpoint_names import bundled_policies, find_checkpoint
from discrete_grpo.runs.recorder import read_metrics, read_samples

TINY = NetworkSizes(layers=1, heads=2, width=8, edge_width=4, global_width=4, walk_length=2)
FAST = GRPOConfig(
    max_steps=3, num_generations=4, generation_batch_size=16, per_device_batch_size=16, save_steps=2, learning_rate=1e-2
)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of an untrained policy over the enumerated molecules of at most 4 atoms, 5 steps."""
    stats = statistics(load_enumerated(4))
    folder = tmp_path_factory.mktemp("tiny") / "policy"
    return save(folder, molecule_policy(stats, TINY, DiffusionOptions(num_steps=5)), metadata={"statistics": stats.to_json()})


RECIPES = (
    PretrainRecipe,
    PretrainGraphsRecipe,
    PretrainGraphSequencesRecipe,
    PretrainSmilesRecipe,
    PretrainTextRecipe,
    JudgeRecipe,
    PretrainDigitsRecipe,
    PretrainSpatialRecipe,
    SFTRecipe,
    TrainRecipe,
    SearchRecipe,
)


@pytest.mark.parametrize("recipe", RECIPES)
def test_whole_numbers_and_names_of_files_are_checked_before_any_work(recipe: Any) -> None:
    whole = [f.name for f in dataclasses.fields(recipe) if f.type in ("int", "int | None") and f.name != "top_k"]
    assert whole
    for name in whole:
        with pytest.raises(ValueError, match=f"^{name}: 2.5, expected a whole number"):
            recipe(**{name: 2.5})
    for name in {"max_nodes", "max_bytes", "max_length", "evaluation_samples"} & set(whole):
        with pytest.raises(ValueError, match=f"^{name}: -1, expected at least [01]$"):
            recipe(**{name: -1})
    if recipe in RECIPES[:6]:
        with pytest.raises(ValueError, match=r"^data: a list, expected the name of a "):
            recipe(data=["CCO"])


@pytest.mark.parametrize("recipe", [PretrainGraphsRecipe, PretrainGraphSequencesRecipe])
def test_an_unknown_shape_is_refused_before_any_work(recipe: Any) -> None:
    with pytest.raises(ValueError, match=r"^shape: 'foo', expected one of planar, tree, sbm, connected$"):
        recipe(shape="foo")


def test_whole_numbers_of_functions_are_checked_before_any_work(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^n: 2.5, expected a whole number, at least 1$"):
        sample("tree-16", 2.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^num_steps: 3.5, expected a whole number, 1 to 10000$"):
        train("tree-16", qed, output_dir=tmp_path / "run", num_steps=3.5)
    assert not (tmp_path / "run").exists()


def test_what_is_no_network_is_refused(tmp_path: Path) -> None:
    recipe = PretrainRecipe(data="enumerated", max_atoms=3, output_dir=str(tmp_path / "run"))
    network: Any = "x"
    with pytest.raises(ValueError, match=r"^network: 'x', expected a torch.nn.Module, NetworkSizes or None$"):
        pretrain(recipe, network=network)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("noise", ["uniform", "marginal", "absorbing"])
def test_every_noise_samples_and_scores(noise: Any) -> None:
    stats = statistics(load_enumerated(4))
    before = torch.random.get_rng_state()
    policy = molecule_policy(stats, TINY, DiffusionOptions(noise=noise, num_steps=5, schedule="linear"))
    assert torch.equal(before, torch.random.get_rng_state())
    rollout = policy.sample(group_contexts(12, 2), generator=torch.Generator().manual_seed(0))
    assert len(rollout.samples) == 24
    assert all(s is None or Chem.MolFromSmiles(s) is not None for s in rollout.samples)
    replayed = sum(
        (site.log_probs.gather(-1, site.action.long()[..., None])[..., 0] * site.mask).sum(-1) for site in policy.sites(rollout)
    )
    torch.testing.assert_close(replayed, rollout.logp, rtol=0, atol=1e-4)
    other = molecule_policy(stats, TINY, DiffusionOptions(noise=noise, num_steps=5), seed=1)
    again = molecule_policy(stats, TINY, DiffusionOptions(noise=noise, num_steps=5))
    assert all(torch.equal(v, again.state_dict()[k]) for k, v in policy.state_dict().items())
    assert not all(torch.equal(v, other.state_dict()[k]) for k, v in policy.state_dict().items())


def test_an_unknown_noise_is_named() -> None:
    with pytest.raises(ValueError, match="noise: 'pink', expected one of uniform, marginal, absorbing"):
        molecule_policy(statistics(load_enumerated(3)), TINY, DiffusionOptions(noise="pink"))  # type: ignore[arg-type]


def test_one_network_is_driven_by_every_kernel_of_its_noise(tiny: Path) -> None:
    posterior = load_policy(tiny)
    euler = load_policy(tiny, SamplerOptions(kernel="flow_euler", eta=2.0, sample_distortion="polydec"))
    assert euler.edge_kernel == FlowEuler(posterior.edge_kernel.noise, 2.0)
    assert posterior.edge_kernel.noise.num_clean == 4
    assert float(euler.grid[1]) == pytest.approx((1 - 1 / euler.num_steps) ** 2)
    assert with_sampler(euler, SamplerOptions(omega=0.5)).edge_kernel.eta == 2.0, "what is not given is kept"
    assert with_sampler(euler, SamplerOptions(kernel="d3pm")).node_kernel == posterior.node_kernel
    assert torch.equal(next(euler.parameters()), next(posterior.parameters()))
    with pytest.raises(ValueError, match=r"eta: 2\.0, expected 0 with kernel d3pm"):
        load_policy(tiny, SamplerOptions(eta=2.0))


def test_overrides_of_a_loaded_policy(tiny: Path) -> None:
    plain, changed = load_policy(tiny), load_policy(tiny, SamplerOptions(num_steps=9, temperature=0.5))
    assert (plain.num_steps, plain.temperature) == (5, 1.0)
    assert (changed.num_steps, changed.temperature) == (9, 0.5)
    assert len(changed.grid) == 10
    assert not changed.training
    assert all(torch.equal(v, changed.state_dict()[k]) for k, v in plain.state_dict().items())
    assert any(isinstance(s, str) for s in sample(changed, 100))  # decodes


def test_find_checkpoint_takes_every_form(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_checkpoint(tiny) == tiny
    assert find_checkpoint(tiny.parent) == tiny  # a finished run
    save(tmp_path / "bundled/qm9-small", checkpoint.read_policy(tiny), metadata=load_metadata(tiny))
    monkeypatch.setattr("discrete_grpo.runs.checkpoint_names.BUNDLED", tmp_path / "bundled")
    assert bundled_policies() == ["qm9-small"]
    assert find_checkpoint("qm9-small") == tmp_path / "bundled/qm9-small"
    run_train(TrainRecipe(str(tiny), qed, str(tmp_path / "run"), FAST, evaluation_samples=0))
    assert find_checkpoint(tmp_path / "run") == tmp_path / "run/policy"
    (tmp_path / "run/policy/config.json").unlink()  # as in a run that was stopped
    assert find_checkpoint(str(tmp_path / "run")) == tmp_path / "run/checkpoints/step-00000003"
    with pytest.raises(CheckpointError, match=r"policy: 'qm9-smal' is no .* did you mean 'qm9-small'"):
        find_checkpoint("qm9-smal")


def test_damaged_metadata_is_a_checkpoint_error(tiny: Path, tmp_path: Path) -> None:
    policy, metadata = checkpoint.read_policy(tiny), load_metadata(tiny)
    for k, (wrong, said) in enumerate(
        [
            ({}, "no molecule statistics"),
            ({"statistics": 3}, "cannot be read"),
            (
                {"statistics": metadata["statistics"] | {"vocabulary": ["C", "N"]}},
                "vocabulary of 2 atom types, expected the policy's 4",
            ),
            ({"statistics": metadata["statistics"] | {"vocabulary": ["C", "N", "O", "Zz"]}}, "'Zz'"),
        ]
    ):
        with pytest.raises(CheckpointError, match=said):
            load_policy(save(tmp_path / str(k), policy, metadata=wrong))
    config = json.loads((tiny / "config.json").read_text())
    del config["metadata"]
    (tmp_path / "0/config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match="has no metadata"):
        load_policy(tmp_path / "0")


# -- scaffolds


@pytest.mark.parametrize("smiles", ["CO", "C=C", "C1CN1", "O=CN", "C#N"])
def test_scaffolds_are_in_every_sample(tiny: Path, smiles: str) -> None:
    policy = load_policy(tiny)
    fixed = scaffold_sites(smiles, Vocabulary(("C", "N", "O", "F")), policy.max_nodes)
    rollout = policy.sample(group_contexts(60, 1, [{"fixed": fixed}] * 60), generator=torch.Generator().manual_seed(1))
    nodes, pairs = rollout.states["nodes"][:, -1], rollout.states["pairs"][:, -1]
    for i, c in fixed.nodes.items():
        assert (nodes[:, i] == c).all()
    for (i, j), c in fixed.edges.items():
        assert (pairs[:, j * (j - 1) // 2 + i] == c).all()
    n = Chem.MolFromSmiles(smiles).GetNumAtoms()
    assert set(fixed.edges) == {(i, j) for j in range(n) for i in range(j)}
    assert (rollout.size >= n).all()
    pattern = Chem.MolFromSmiles(smiles)
    valid = [s for s in rollout.samples if s is not None]
    assert valid
    for mol in map(Chem.MolFromSmiles, valid):
        Chem.Kekulize(mol, clearAromaticFlags=True)  # a ring around the scaffold may read as aromatic
        assert mol.HasSubstructMatch(pattern) or smiles == "C1CN1", Chem.MolToSmiles(mol)


@pytest.mark.parametrize(
    ("smiles", "said"),
    [
        ("C((", "scaffold: 'C((', expected a valid SMILES"),
        ("", "scaffold: '', expected"),
        ("CS", "scaffold: 'CS', atom 'S' is not in the vocabulary"),
        ("CCCCC", "scaffold: 'CCCCC' has 5 atoms, expected at most the policy's 4"),
    ],
)
def test_a_bad_scaffold_is_named(smiles: str, said: str) -> None:
    with pytest.raises(ValueError, match="scaffold") as error:
        scaffold_sites(smiles, Vocabulary(("C", "N", "O", "F")), 4)
    assert said in str(error.value)


def test_training_under_a_scaffold_keeps_it(tiny: Path, tmp_path: Path) -> None:
    recipe = TrainRecipe(str(tiny), validity, str(tmp_path / "run"), FAST, scaffold="CO", evaluation_samples=20)
    run_train(recipe)
    pattern = Chem.MolFromSmiles("CO")
    for table in ("samples.csv.gz", "evaluation_before.csv.gz", "evaluation_after.csv.gz"):
        valid = [s for s in read_samples(tmp_path / "run" / table)["sample"] if s]
        assert valid
        assert all(Chem.MolFromSmiles(s).HasSubstructMatch(pattern) for s in valid)


# -- a whole run


def without_times(folder: Path) -> list[dict[str, Any]]:
    return [{k: v for k, v in line.items() if k != "step_time"} for line in read_metrics(folder)]


CHECKPOINT = ("config.json", "model.safetensors", "training.pt", "SHA256SUMS")


def test_a_run_leaves_all_its_files_and_is_the_same_twice(tiny: Path, tmp_path: Path) -> None:
    runs = [tmp_path / "a", tmp_path / "b", tmp_path / "c"]
    recipe = TrainRecipe(
        str(tiny), [qed, validity], grpo=dataclasses.replace(FAST, reward_weights=(1.0, 0.5)), evaluation_samples=30
    )
    other_seed = dataclasses.replace(recipe.grpo, seed=1)
    results = [
        run_train(dataclasses.replace(recipe, output_dir=str(run), grpo=other_seed if run.name == "c" else recipe.grpo))
        for run in runs
    ]
    files = {p.relative_to(runs[0]).as_posix() for p in runs[0].rglob("*") if p.is_file()}
    assert files == {
        "metrics.jsonl",
        "samples.csv.gz",
        "evaluation_before.csv.gz",
        "evaluation_after.csv.gz",
        "evaluation.json",
        "policy/config.json",
        "policy/model.safetensors",
        "report.html",
        "rewards.json",
        "settings.json",
        "ledger.sqlite",
        "ledger.sqlite.log",
        "scores.sqlite",
        *(f"checkpoints/step-0000000{k}/{name}" for k in (2, 3) for name in CHECKPOINT),
    }  # config.yaml and run.json are the command line's
    assert json.loads((runs[0] / "evaluation.json").read_text()) == {
        when: {name: None if math.isnan(value) else value for name, value in row.items()} for when, row in results[0].items()
    }
    table = read_samples(runs[0] / "evaluation_after.csv.gz")
    assert list(table) == ["sample", "reward", "reward_qed", "reward_validity", "QED", "logP", "SA", "weight"]
    for total, a, b in zip(table["reward"], table["reward_qed"], table["reward_validity"], strict=True):
        assert float(total) == pytest.approx(float(a) + 0.5 * float(b))
    assert results[0]["after"]["reward"] == pytest.approx(sum(map(float, table["reward"])) / 30)
    assert load_metadata(runs[0] / "policy") | {"grpo_steps": 3, "rewards": ["qed", "validity"]} == load_metadata(
        runs[0] / "policy"
    )
    for name in ("policy/model.safetensors", "policy/config.json", "samples.csv.gz", "evaluation.json", "evaluation_after.csv.gz"):
        assert (runs[0] / name).read_bytes() == (runs[1] / name).read_bytes(), name
    assert without_times(runs[0]) == without_times(runs[1])
    assert (runs[0] / "policy/model.safetensors").read_bytes() != (runs[2] / "policy/model.safetensors").read_bytes()
    assert "<svg" in (runs[0] / "report.html").read_text()


def half_known(samples: Sequence[Any], **columns: Any) -> list[float]:
    return [math.nan if k % 2 else 4.0 for k in range(len(samples))]


def test_unknown_rewards_are_left_out_of_the_evaluation(tiny: Path, tmp_path: Path) -> None:
    result = run_train(TrainRecipe(str(tiny), half_known, str(tmp_path / "run"), FAST, evaluation_samples=10))
    assert result["before"]["reward"] == result["after"]["reward"] == 4.0


def test_resuming_needs_nothing_but_the_run_folder(tiny: Path, tmp_path: Path) -> None:
    """The policy a run started from may be gone: its checkpoints hold what is needed."""
    source = save(tmp_path / "source", checkpoint.read_policy(tiny), metadata=load_metadata(tiny))
    long = dataclasses.replace(FAST, max_steps=5)
    whole = TrainRecipe(str(source), qed, str(tmp_path / "whole"), long, num_steps=3, evaluation_samples=10)
    run_train(whole)
    calls = []

    def stops(samples: Sequence[Any], **columns: Any) -> list[float]:
        calls.append(1)
        if len(calls) == 4:
            raise RuntimeError("no more")
        return qed(samples)

    stops.__name__ = "qed"
    part = dataclasses.replace(whole, output_dir=str(tmp_path / "part"), reward=stops)
    with pytest.raises(RuntimeError, match="no more"):
        run_train(part)
    for file in source.iterdir():
        file.unlink()
    run_train(part, resume=True)
    for name in ("policy/model.safetensors", "policy/config.json", "samples.csv.gz", "evaluation.json"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "part" / name).read_bytes(), name


# -- sampling, evaluation, data


def test_sample_files_are_what_their_names_say(tiny: Path, tmp_path: Path) -> None:
    texts = {}
    for name in ("a.smi", "a.smi.gz", "a.csv", "a.csv.gz", "again.csv.gz"):
        path = sample_file(str(tiny), 40, str(tmp_path / name), seed=3)
        assert (path.read_bytes()[:2] == b"\x1f\x8b") == name.endswith(".gz")
        texts[name] = path.read_bytes()
        result = evaluate_file(str(path))  # can be read back, and the invalid samples of a table still count
        assert result["num_samples"] == (40 if ".csv" in name else len(texts["a.smi"].split()))
    assert texts["a.csv.gz"] == texts["again.csv.gz"]
    table = read_samples(tmp_path / "a.csv.gz")
    assert list(table) == ["smiles", "QED", "logP", "SA", "weight"]
    assert len(table["smiles"]) == 40
    assert [s for s in table["smiles"] if s and "." not in s] == texts["a.smi"].decode().split()
    assert any("." in s for s in table["smiles"])
    assert evaluate_file(str(tmp_path / "a.smi"))["valid"] == 1.0
    assert evaluate_file(str(tmp_path / "a.csv"))["valid"] == len(texts["a.smi"].split()) / 40
    assert sample_lines(str(tiny), 40, seed=3) == texts["a.smi"].decode().split()
    assert all((s == "" or "." in s) == (weight == "") for s, weight in zip(table["smiles"], table["weight"], strict=True))


def test_samples_that_a_file_cannot_hold_are_told_and_no_file_is_replaced_by_an_empty_one(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out, loaded = tmp_path / "a.smi", load(str(tiny))
    for drawn in (["CC", None, "C", "C.C"], [None, "C.C"]):
        monkeypatch.setattr("discrete_grpo.recipes.sample._drawn", lambda *given, drawn=drawn: (drawn, {}))
        monkeypatch.setattr("discrete_grpo.recipes.sample.load", lambda *given: loaded)
        if "CC" in drawn:
            sample_file(str(tiny), 4, str(out))
            assert f"2 of 4 samples are invalid and are left out of {out}; a .csv has a row" in capsys.readouterr().err
        else:
            with pytest.raises(ValueError, match=r"^out: none of 2 samples can be written to"):
                sample_file(str(tiny), 2, str(out))
    assert out.read_text() == "CC\nC\n"


def test_evaluate_compares_canonical_molecules(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "s.smi").write_text("OCC\nCCC\nnonsense((\nC[C@H](N)O\n")
    (tmp_path / "r.smi").write_text("CCO\nC[C@@H](N)O\n")  # another spelling, the other enantiomer
    result = evaluate_file(str(tmp_path / "s.smi"), FileOptions(reference=str(tmp_path / "r.smi")), out=str(tmp_path / "o.json"))
    assert result["valid"] == 0.75
    assert result["novel"] == pytest.approx(1 / 3)
    assert json.loads((tmp_path / "o.json").read_text())["samples"] == 4
    assert "1 of 4 lines are no molecule: line 3: 'nonsense(('" in capsys.readouterr().err


@pytest.mark.parametrize("max_atoms", [0, 8])
def test_max_atoms_of_the_enumeration_is_checked(tmp_path: Path, max_atoms: int) -> None:
    with pytest.raises(ValueError, match=rf"max_atoms: {max_atoms}, expected 1 to 7"):
        run_pretrain(PretrainRecipe(output_dir=str(tmp_path), max_atoms=max_atoms))


def test_pretraining_leaves_a_policy_that_loads(tmp_path: Path) -> None:
    config = PretrainConfig(max_steps=4, batch_size=16, log_steps=2, save_steps=2, warmup_steps=1)
    folder = run_pretrain(
        PretrainRecipe(output_dir=str(tmp_path), num_steps=4, network=TINY, pretrain=config, max_atoms=3, evaluation_samples=8)
    )
    assert folder == tmp_path / "policy"
    assert load_metadata(folder)["data"] == {"name": "enumerated3", "molecules": 49, "licence": "unknown"}
    assert load_metadata(folder)["statistics"]["vocabulary"] == ["C", "N", "O", "F"]
    assert len(sample(load_policy(folder), 7)) == 7
    assert [line["step"] for line in read_metrics(tmp_path) if "eval/valid" in line] == [2, 4]
