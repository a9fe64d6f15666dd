"""SMILES recipes and what recipes know of each family: loading with options, conditions, sampling, whole runs."""

from __future__ import annotations

import csv
import gzip
import json
import pickle
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import networkx as nx
import pytest
import torch

from discrete_grpo import GRPOConfig, PretrainConfig
from discrete_grpo.core.sample_metrics import SampleMetrics
from discrete_grpo.datasets.enumeration import enumerated_smiles, load_enumerated
from discrete_grpo.datasets.molecules import statistics
from discrete_grpo.datasets.spatial import conformers
from discrete_grpo.diffusion.schedules import DigressSchedule
from discrete_grpo.domains.named_graphs import to_line
from discrete_grpo.domains.smiles import parse, to_smiles
from discrete_grpo.domains.spatial_molecules import smiles_of
from discrete_grpo.domains.tokenizer import BOS, EOS
from discrete_grpo.metrics.digraphs import sample_metrics as digraph_metrics
from discrete_grpo.metrics.graphs import sample_metrics as graph_metrics
from discrete_grpo.metrics.molecules import sample_metrics as flat_metrics
from discrete_grpo.metrics.spatial import sample_metrics as spatial_metrics
from discrete_grpo.models.graph_transformer import NetworkSizes
from discrete_grpo.policies.decoded import DecodedPolicy
from discrete_grpo.policies.options import with_options
from discrete_grpo.recipes.conditions import prepare_columns, read_columns
from discrete_grpo.recipes.families import Family, SamplerOptions, family_of, run_family
from discrete_grpo.recipes.kinds.digraphs import digraph_family
from discrete_grpo.recipes.kinds.graphs import graph_family
from discrete_grpo.recipes.kinds.images import IMAGES
from discrete_grpo.recipes.kinds.molecules import MOLECULES
from discrete_grpo.recipes.kinds.spatial import SPATIAL
from discrete_grpo.recipes.kinds.text import TEXT
from discrete_grpo.recipes.loading import _check_steps, load, load_policy
from discrete_grpo.recipes.optimise import optimise
from discrete_grpo.recipes.pretraining.diffusion import DiffusionOptions
from discrete_grpo.recipes.pretraining.molecules import PretrainRecipe, molecule_policy, run_pretrain
from discrete_grpo.recipes.pretraining.smiles import PretrainSmilesRecipe, run_pretrain_smiles
from discrete_grpo.recipes.sample import sample_file, sample_policy
from discrete_grpo.recipes.train import TrainRecipe, run_train
from discrete_grpo.rewards.conditions import HitsProperty, keeps_scaffold
from discrete_grpo.rewards.diversity import diversity_metrics
from discrete_grpo.rewards.molecules import validity
from discrete_grpo.runs import checkpoint
from discrete_grpo.runs.checkpoint import CheckpointError, load_metadata, save
from discrete_grpo.runs.recorder import read_metrics, read_samples
from tests.directed_sets import dags

TINY = PretrainConfig(max_steps=30, batch_size=64, learning_rate=3e-3, warmup_steps=5, save_steps=15, log_steps=10, ema_decay=0.9)
RECIPE = PretrainSmilesRecipe(
    properties=("MolLogP",), scaffold=True, layers=1, heads=2, width=32, pretrain=TINY, evaluation_samples=8
)
FAST = GRPOConfig(
    max_steps=2, num_generations=4, generation_batch_size=16, per_device_batch_size=16, save_steps=1, learning_rate=1e-3
)


@pytest.fixture(scope="module", autouse=True)
def _few_molecules() -> Iterator[None]:
    """Every 36th molecule of the bundled enumeration: parsing all of it takes longer than these tests."""
    few = enumerated_smiles()[::36]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("discrete_grpo.recipes.pretraining.smiles.enumerated_smiles", lambda: few)
        yield


@pytest.fixture(scope="module")
def smiles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A barely trained SMILES policy on the bundled enumeration."""
    return run_pretrain_smiles(replace(RECIPE, output_dir=str(tmp_path_factory.mktemp("smiles"))))


@pytest.fixture(scope="module")
def graphs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    stats = statistics(load_enumerated(4))
    sizes = NetworkSizes(layers=1, heads=2, width=8, edge_width=4, global_width=4, walk_length=2)
    policy = molecule_policy(stats, sizes, DiffusionOptions(num_steps=4))
    return save(tmp_path_factory.mktemp("graphs") / "p", policy, metadata={"statistics": stats.to_json()})


def test_pretraining_writes_a_policy_that_knows_its_data(smiles: Path) -> None:
    metadata, policy = load_metadata(smiles), checkpoint.read_policy(smiles)
    assert metadata["kind"] == "molecules"
    assert metadata["data"] == {"name": "enumerated", "molecules": 1_058, "licence": "unknown"} | metadata["data"]
    assert metadata["pretraining_steps"] == 30
    assert policy.prompt == "scaffold"
    assert policy.properties[0].name == "MolLogP"
    lines = read_metrics(smiles.parent)
    assert [line["step"] for line in lines if "loss" in line] == [10, 20, 30]
    assert lines[-1]["step"] == 30
    losses = [line["loss"] for line in lines if line.get("loss") is not None]
    assert losses[-1] < losses[0]  # type: ignore[operator]


@pytest.mark.parametrize("lines", [["c1ccccc1", "C1CC1O", "CCO", "c1ccccc1C", "C1CC1"], ["CCO", "CC", "CN", "CO"]])
def test_a_policy_that_never_draws_without_a_scaffold_is_measured_with_those_of_its_data(lines: list[str], tmp_path: Path) -> None:
    (tmp_path / "a.smi").write_text("".join(f"{line}\n" for line in lines))
    short = replace(TINY, max_steps=2, save_steps=1)
    always = replace(RECIPE, data=str(tmp_path / "a.smi"), properties=(), condition_dropout=0.0, test_share=0.0, pretrain=short)
    folder = run_pretrain_smiles(replace(always, output_dir=str(tmp_path / "run")))
    assert sum("eval/unique" in line for line in read_metrics(tmp_path / "run")) == 2
    run_pretrain_smiles(replace(always, evaluation_samples=0, output_dir=str(tmp_path / "none")))
    with pytest.raises(ValueError, match=r"^policy: it needs conditions, expected one that draws without any \(scaffold: None"):
        optimise(load_policy(folder), validity, output_dir=tmp_path / "found")
    assert not (tmp_path / "found").exists()


def test_pretraining_resumes_to_the_same_bits(smiles: Path, tmp_path: Path) -> None:
    run = shutil.copytree(smiles.parent, tmp_path / "run")
    shutil.rmtree(run / "policy")
    shutil.rmtree(run / "checkpoints/step-00000030")
    again = run_pretrain_smiles(replace(RECIPE, output_dir=str(run)), resume=True)
    a, b = checkpoint.read_policy(smiles).state_dict(), checkpoint.read_policy(again).state_dict()
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert [line["step"] for line in read_metrics(run) if "loss" in line] == [10, 20, 30]


def test_a_loaded_policy_draws_canonical_smiles(smiles: Path) -> None:
    samples, columns = sample_policy(load_policy(smiles.parent), 40, batch_size=16)
    assert len(samples) == 40
    assert columns == {}
    valid = [s for s in samples if s is not None]
    assert all(mol is not None and to_smiles(mol) == s for s in valid for mol in [parse(s)])


def test_options_change_how_a_policy_draws_and_nothing_else(smiles: Path, graphs: Path) -> None:
    plain = load_policy(smiles)
    changed = load_policy(smiles, SamplerOptions(temperature=0.5, top_k=7, top_p=0.9))
    assert (changed.truncation.temperature, changed.truncation.top_k, changed.truncation.top_p) == (0.5, 7, 0.9)
    assert not changed.training
    assert all(torch.equal(v, changed.state_dict()[k]) for k, v in plain.state_dict().items())
    assert load_policy(graphs, SamplerOptions(num_steps=7)).num_steps == 7
    for folder, options, said in [
        (smiles, SamplerOptions(num_steps=5), "num_steps: 5, expected none: TokenPolicy has no such setting"),
        (graphs, SamplerOptions(top_p=0.5), "top_p: 0.5, expected none: GraphPolicy"),
        (graphs, SamplerOptions(guidance=2.0), "guidance: 2.0, expected 1 without properties"),
    ]:
        with pytest.raises(ValueError, match=said):
            load_policy(folder, options)


def test_options_reach_the_policy_inside_a_decoded_one() -> None:
    policy = load_policy("digits", SamplerOptions(temperature=0.5))
    assert isinstance(policy, DecodedPolicy)
    assert policy.init_args()["policy"].truncation.temperature == 0.5
    with pytest.raises(ValueError, match="num_steps: 3"):
        load_policy("digits", SamplerOptions(num_steps=3))


def test_the_kind_decides_the_family(tmp_path: Path, smiles: Path) -> None:
    assert [family_of({"kind": k} if k else {}) for k in (None, "molecules", "text", "images")] == [
        MOLECULES,
        MOLECULES,
        TEXT,
        IMAGES,
    ]
    with pytest.raises(CheckpointError, match=r"kind: 'sounds' of the checkpoint, expected one of .*graphs, .*molecules,"):
        family_of({"kind": "sounds"})
    with pytest.raises(
        CheckpointError, match=r"^family: 'molecule' of SimpleNamespace, did you mean 'molecules'\? expected one of"
    ):
        family_of({}, SimpleNamespace(family="molecule"))
    assert run_family(tmp_path) is MOLECULES
    assert run_family(smiles.parent) is MOLECULES


def test_conditions_come_from_lists_and_files(tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    path.write_text('{"scaffold": "CC"}\n{"MolLogP": 3}\n')
    assert read_columns(str(path)) == [{"scaffold": "CC"}, {"MolLogP": 3}]
    assert read_columns([{"a": 1}]) == [{"a": 1}]
    path.write_text('{"kind": "a\u2028b\u0085c"}\n{"kind": "d"}\r\n\n', encoding="utf-8-sig")
    assert read_columns(str(path)) == [{"kind": "a\u2028b\u0085c"}, {"kind": "d"}]
    path.write_text('\n{"a": 1}\n \n{"a": 2}\n')
    assert read_columns(str(path)) == [{"a": 1}, {"a": 2}]
    (packed := tmp_path / "c.jsonl.gz").write_bytes(gzip.compress(path.read_bytes()))
    assert read_columns(str(packed)) == [{"a": 1}, {"a": 2}]
    (other := tmp_path / "other.jsonl").write_bytes('{"a": 1}'.encode("utf-16"))
    with pytest.raises(ValueError, match=r"^columns: .*other\.jsonl' cannot be read as text, expected UTF-8"):
        read_columns(str(other))
    for text, said in [
        ("", "no conditions"),
        ("{broken\n", "line 1 is no JSON"),
        ("3\n", "3, expected a mapping"),
        ('{"reward": 1}\n', "named 'reward'"),
        ('{"refined": 1}\n', "named 'refined'"),
        ('{"reward_qed": 1}\n', r"named 'reward_qed', expected none of .*, reward_\.\.\. or measured_\.\.\.$"),
        ('{"measured_logP": 1}\n', "named 'measured_logP'"),
    ]:
        path.write_text(text)
        with pytest.raises(ValueError, match=said):
            read_columns(str(path))
    with pytest.raises(FileNotFoundError, match=r"columns: 'nowhere\.jsonl' is no file"):
        read_columns("nowhere.jsonl")


def test_scaffolds_are_put_in_the_form_each_policy_reads(smiles: Path, graphs: Path) -> None:
    token, graph = load(smiles), load(graphs)
    assert prepare_columns(token, None, None) is None
    assert prepare_columns(token, [{"MolLogP": 1.0}], "C1CC1") == [{"scaffold": "C1CC1", "MolLogP": 1.0}]
    assert prepare_columns(token, [{"scaffold": "N1C=CC=C1"}], None) == [{"scaffold": "c1cc[nH]c1"}]
    prepared = prepare_columns(graph, None, "C1CC1")
    assert prepared is not None
    assert prepared[0]["scaffold"] == "C1CC1"
    assert prepared[0]["fixed"].nodes.keys() == {0, 1, 2}
    for scaffold, said in [
        ("C1CC", "scaffold: 'C1CC', expected a valid, connected SMILES"),
        ("C[Si]C", r"scaffold: .* has the token '\[Si\]'"),
        ("C" * 80, "has 80 tokens, expected at most"),
    ]:
        with pytest.raises(ValueError, match=said):
            prepare_columns(token, None, scaffold)
    bare = replace(token, policy=type(token.policy)(**token.policy.init_args() | {"prompt": None}))
    with pytest.raises(ValueError, match="expected none: the policy reads no scaffolds"):
        prepare_columns(bare, None, "C1CC1")


def test_conditions_of_a_graph_policy_are_tried_before_the_work(graphs: Path) -> None:
    policy = load(graphs)
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"num_nodes": "five"}, "num_nodes: 'five', expected a whole number"),
        ({"num_nodes": 2.7}, "num_nodes: 2.7, expected a whole number"),
        ({"num_nodes": 99}, "num_nodes: 99, expected 1 to 4"),
        ({"fixed": 3}, "fixed: 3, expected FixedSites"),
        ({"scaffold": 5}, "scaffold: 5, expected a SMILES string"),
    ]
    for condition, said in wrong:
        with pytest.raises(ValueError, match=said):
            prepare_columns(policy, [condition], None)
    assert prepare_columns(policy, [{"num_nodes": 3}], None) == [{"num_nodes": 3}]


@pytest.mark.parametrize("options", [{"node_count": "learned"}, {"node_count": "running"}, {"likelihood": "eager"}])
def test_a_policy_with_a_wrapper_keeps_scaffolds(options: dict[str, Any]) -> None:
    loaded = load("qm9-small", SamplerOptions(num_steps=4))
    loaded = replace(loaded, policy=with_options(loaded.policy, **options))
    assert loaded.family.scaffolds(loaded.policy)
    columns = prepare_columns(loaded, None, "CO")
    samples, _ = sample_policy(loaded.policy, 20, columns=columns)
    valid = [smiles for smiles in samples if smiles is not None]
    assert valid
    assert all("O" in smiles for smiles in valid)


def test_a_misspelt_condition_is_named(smiles: Path, graphs: Path) -> None:
    for folder, name, meant in [(smiles, "scafold", "scaffold"), (smiles, "MolLogp", "MolLogP"), (graphs, "num_node", "num_nodes")]:
        with pytest.raises(ValueError, match=f"columns: a condition named '{name}'; did you mean '{meant}'"):
            prepare_columns(load(folder), [{name: 1}])
    with pytest.raises(ValueError, match="did you mean 'label'"):
        prepare_columns(load("digits"), [{"lable": 1}])
    assert prepare_columns(load(smiles), [{"target": 1}]) == [{"target": 1}]  # a reward's own


def test_a_label_is_one_token_and_a_scaffold_is_for_molecules() -> None:
    policy = load("digits")
    with pytest.raises(ValueError, match="label: '12' has 2 tokens, expected at most 1"):
        prepare_columns(policy, [{"label": 12}], None)
    with pytest.raises(ValueError, match="scaffold: 'C1CC1', expected none: the policy reads no scaffolds"):
        prepare_columns(policy, None, "C1CC1")


def test_a_resumed_run_reads_its_conditions_in_its_folder(smiles: Path, tmp_path: Path) -> None:
    path, run = tmp_path / "c.jsonl", tmp_path / "run"
    path.write_text('{"scaffold": "C1CC1"}\n')
    recipe = TrainRecipe(str(smiles), validity, str(run), FAST, columns=str(path), evaluation_samples=4)
    run_train(recipe)
    path.unlink()
    run_train(replace(recipe, grpo=replace(FAST, max_steps=3)), resume=True)
    assert read_columns(str(run / "columns.jsonl")) == [{"scaffold": "C1CC1"}]
    assert read_metrics(run)[-1]["step"] == 3


def test_other_conditions_of_a_resumed_run_are_told(smiles: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, run = tmp_path / "c.jsonl", tmp_path / "run"
    path.write_text('{"scaffold": "C1CC1"}\n')
    recipe = TrainRecipe(str(smiles), validity, str(run), FAST, columns=str(path), evaluation_samples=0)
    run_train(recipe)
    path.write_text('{"scaffold": "CC"}\n')
    capsys.readouterr()
    run_train(replace(recipe, grpo=replace(FAST, max_steps=3)), resume=True)
    assert (
        f"columns: {path} is not used, as the run goes on with the conditions in columns.jsonl, which differ"
        in capsys.readouterr().err
    )
    for steps, columns in ((4, [{"scaffold": "CC"}]), (5, None)):
        run_train(replace(recipe, columns=columns, grpo=replace(FAST, max_steps=steps)), resume=True)
        told = "columns: the conditions differ from those of the run; these apply from the next update on"
        assert told in capsys.readouterr().err
    run_train(replace(recipe, columns=None, grpo=replace(FAST, max_steps=6)), resume=True)
    assert "columns" not in capsys.readouterr().err


def test_a_molecule_longer_than_max_length_is_found_before_training(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="max_length: 3, expected at least"):
        run_pretrain_smiles(replace(RECIPE, output_dir=str(tmp_path / "run"), max_length=3))


def test_conditions_are_gone_through_in_turn(smiles: Path) -> None:
    conditions: list[dict[str, Any]] = [{"scaffold": "C1CC1"}, {"MolLogP": 2.0}, {}]
    samples, found = sample_policy(load_policy(smiles), 7, batch_size=4, columns=conditions)
    assert len(samples) == 7
    assert found == {
        "scaffold": ["C1CC1", None, None, "C1CC1", None, None, "C1CC1"],
        "MolLogP": [None, 2.0, None, None, 2.0, None, None],
    }
    with pytest.raises(ValueError, match="n: 0"):
        sample_policy(load_policy(smiles), 0)


def test_files_of_samples(smiles: Path, tmp_path: Path) -> None:
    path = sample_file(str(smiles), 12, str(tmp_path / "s.csv.gz"), columns=[{"MolLogP": 1.0}])
    rows = list(csv.DictReader(gzip.decompress(path.read_bytes()).decode().splitlines()))
    assert len(rows) == 12
    assert set(rows[0]) >= {"smiles", "MolLogP", "QED"}
    plain = sample_file(str(smiles), 64, str(tmp_path / "s.smi"))
    assert all(parse(line) is not None for line in plain.read_text().splitlines())


def test_a_conditional_run_from_start_to_report(smiles: Path, tmp_path: Path) -> None:
    recipe = TrainRecipe(
        policy=str(smiles),
        reward=[HitsProperty("MolLogP"), keeps_scaffold, validity],
        output_dir=str(tmp_path / "run"),
        grpo=FAST,
        columns=[{"scaffold": "C1CC1", "MolLogP": 1.0}, {"scaffold": "c1ccoc1", "MolLogP": 0.0}],
        evaluation_samples=10,
    )
    result = run_train(recipe)
    assert result.keys() == {"before", "after"}
    assert {"reward", "reward_hits_MolLogP", "reward_keeps_scaffold", "valid"} <= result["after"].keys()
    table = read_samples(tmp_path / "run/evaluation_after.csv.gz")
    assert list(table)[:3] == ["scaffold", "MolLogP", "sample"]
    assert table["scaffold"][:2] == ["C1CC1", "c1ccoc1"]
    assert '<section id="examples">' in (tmp_path / "run/report.html").read_text()
    assert "decode" not in json.loads((tmp_path / "run/policy/config.json").read_text())["policy"]["init_args"]
    resumed = run_train(replace(recipe, grpo=replace(FAST, max_steps=4)), resume=True)
    assert resumed["before"] == result["before"]


def test_graph_pretraining_takes_properties(tmp_path: Path) -> None:
    recipe = PretrainRecipe(
        output_dir=str(tmp_path / "g"),
        max_atoms=4,
        num_steps=4,
        properties=("MolWt", "TPSA"),
        network=NetworkSizes(layers=1, heads=2, width=8, edge_width=4, global_width=4, walk_length=2),
        pretrain=replace(TINY, max_steps=5),
        evaluation_samples=4,
    )
    folder = run_pretrain(recipe)
    policy = load_policy(folder, SamplerOptions(guidance=2.0))
    assert policy.guidance == 2.0
    assert [p.name for p in policy.properties] == ["MolWt", "TPSA"]
    samples, found = sample_policy(policy, 6, columns=[{"MolWt": 40.0}])
    assert len(samples) == 6
    assert found == {"MolWt": [40.0] * 6}


def test_special_tokens_are_never_drawn(smiles: Path) -> None:
    rollout = load_policy(smiles).sample([*map(_context, range(64))], generator=torch.Generator().manual_seed(0))
    drawn = rollout.states["tokens"]
    assert not bool((drawn == BOS).any())
    ends = (drawn == EOS).sum(1)
    assert int(ends.max()) <= 1


def _context(group: int) -> Any:
    from discrete_grpo import Context

    return Context(group)


FLAT = ["CCO", "OCC", None, "c1ccccc1C", "C1CC1", "C.C", "CCO"]
SPATIAL_SAMPLES = [*conformers(["CCO", "C", "OCC"]), None, replace(conformers(["CO"])[0], bonds=())]
CYCLES = [to_line(nx.cycle_graph(6)), to_line(nx.disjoint_union(nx.cycle_graph(3), nx.cycle_graph(3))), None, "Bg", "BW", "B?"]
DIGRAPHS = [to_line(graph) for graph in dags(6)] * 2 + [None, "&BP_"]


@pytest.mark.parametrize(
    ("family", "samples", "plain"),
    [
        (MOLECULES, FLAT, lambda s: flat_metrics(s) | diversity_metrics(s)),
        (SPATIAL, SPATIAL_SAMPLES, lambda s: spatial_metrics(s) | diversity_metrics([smiles_of(one) for one in s])),
        (graph_family({"shape": "connected"}), CYCLES, graph_metrics),
        (graph_family({"shape": "tree"}), CYCLES, lambda s: graph_metrics(s, "tree")),
        (digraph_family({"shape": "dag"}), DIGRAPHS, digraph_metrics),
    ],
)
def test_metrics_of_descriptions_are_those_of_the_samples(
    family: Family, samples: list[Any], plain: Callable[[list[Any]], dict[str, float]]
) -> None:
    """As two processes describe and send them, and small: a sample is described in fewer bytes than a page of memory."""
    metrics = family.sample_metrics
    assert isinstance(metrics, SampleMetrics)
    found = [metrics.of_own(part) for part in (samples[:3], samples[3:])]
    sent = [pickle.dumps(part) for part in found]
    assert metrics.summarise(samples, [one for part in sent for one in pickle.loads(part)]) == plain(samples) == metrics(samples)
    assert max(map(len, sent)) < 200 * len(samples)
    assert 0 < plain(samples)["unique"] <= 1


def test_a_policy_of_another_package_is_of_unknown_kind_unless_its_checkpoint_has_statistics_of_molecules() -> None:
    class Own:
        pass

    assert family_of({}, Own()).name == "samples"
    assert family_of({"statistics": {}}, Own()) is MOLECULES
    assert family_of({}) is MOLECULES


def test_the_kind_of_a_search_is_that_of_the_checkpoint_of_its_policy(tmp_path: Path) -> None:
    for policy, family in (("digits", IMAGES), ("my_module:Mine@digits", IMAGES), ("my_module:Mine", MOLECULES), (3, MOLECULES)):
        (tmp_path / "search.json").write_text(json.dumps({"policy": policy}))
        assert run_family(tmp_path) is family


@pytest.mark.parametrize("value", [0.0, 1.5])
def test_a_share_of_the_tokens_is_more_than_none_and_at_most_all(value: float) -> None:
    with pytest.raises(ValueError, match=f"^top_p: {value}, expected more than 0 and at most 1$"):
        SamplerOptions(top_p=value)


def test_a_schedule_of_steps_bounds_those_of_the_sampler() -> None:
    noise = SimpleNamespace(schedule=DigressSchedule(steps=20))
    policy = SimpleNamespace(node_kernel=SimpleNamespace(noise=noise), edge_kernel=None)
    _check_steps(policy, 20)
    with pytest.raises(ValueError, match=r"^num_steps: 21, expected 1 to 20 \(diffusion_steps\)$"):
        _check_steps(policy, 21)
