"""Checkpoint files of graph models that are easily read as another model: each is read as what it is, or refused in one line."""

from __future__ import annotations

import json
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from discrete_grpo.cli import main
from discrete_grpo.core.rollout import group_contexts
from discrete_grpo.diffusion.flow import FlowEuler
from discrete_grpo.diffusion.kernels import D3PM
from discrete_grpo.importers import import_checkpoint, import_defog, import_digress, import_graph_grpo
from discrete_grpo.importers.graph_data import DataName, known_data, read_statistics
from discrete_grpo.models.digress_transformer import DigressTransformer
from discrete_grpo.policies.graph import GraphPolicy
from discrete_grpo.runs.checkpoint import CheckpointError, load_metadata, read_policy
from tests.imported import GDPO, PLANAR, QM9, Made, assert_their_logits, defog, digress, digress_of, lightning, one_line, weights

GUACAMOL, ZINC = (12, 5), (9, 4)


def network(policy: GraphPolicy) -> DigressTransformer:
    assert isinstance(policy.network, DigressTransformer)
    return policy.network


def infos(data: DataName, edge_classes: int | None = None, **more: Any) -> dict[str, Any]:
    """What the state of a pickled data set object holds."""
    known = known_data(data, edge_classes)
    found: dict[str, Any] = {"name": data, "n_nodes": torch.tensor(known.node_counts), "max_n_nodes": len(known.node_counts) - 1}
    found |= {"node_types": torch.tensor(known.node_marginal), "edge_types": torch.tensor(known.edge_marginal)}
    if known.atoms:
        found |= {"atom_decoder": list(known.atoms), "max_weight": known.max_weight}
        found |= {"atom_weights": dict(enumerate(known.weights, start=1))}
    return {k: v for k, v in (found | more).items() if v is not None}


# -- DiGress's GuacaMol: its atoms are an attribute of the class, which a pickle leaves out


@pytest.fixture
def guacamol(tmp_path: Path) -> tuple[Path, Made]:
    made = digress_of("guacamol", GUACAMOL)
    module = types.ModuleType("digress_guacamol")
    kind = type("Guacamolinfos", (), {"__module__": module.__name__, "atom_decoder": list(known_data("guacamol").atoms)})
    module.Guacamolinfos = kind  # type: ignore[attr-defined]
    sys.modules[module.__name__] = module
    stored = kind()
    stored.__dict__.update(infos("guacamol", atom_decoder=None))
    path = lightning(tmp_path / "guacamol.ckpt", made[0], hyper_parameters={"dataset_infos": stored})
    sys.modules.pop(module.__name__)
    return path, made


def test_molecules_without_atoms_are_refused(guacamol: tuple[Path, Made], tmp_path: Path) -> None:
    path, _ = guacamol
    said = r"dataset: no atoms are known \(file\), and .*guacamol\.ckpt reads molecular features; .*--dataset=guacamol"
    with pytest.raises(ValueError, match=said) as error:
        import_digress(path)
    one_line(error)
    known = known_data("guacamol")
    fields: dict[str, Any] = {"node_counts": known.node_counts, "node_marginal": known.node_marginal}
    fields |= {"edge_marginal": known.edge_marginal, "weights": known.weights, "max_weight": known.max_weight}
    (tmp_path / "data.json").write_text(json.dumps(fields))
    with pytest.raises(ValueError, match=r"dataset: no atoms are known \(statistics\)"):
        import_digress(path, statistics=tmp_path / "data.json")
    (tmp_path / "data.json").write_text(json.dumps(fields | {"atoms": known.atoms}))
    assert import_digress(path, statistics=tmp_path / "data.json").statistics is not None


def test_molecules_without_molecular_features_need_their_atoms_too(tmp_path: Path) -> None:
    made = weights("planar", GUACAMOL, GUACAMOL, features="all", pooling="masked", max_nodes=88)
    path = lightning(tmp_path / "x.ckpt", made[0], hyper_parameters={"dataset_infos": infos("guacamol", atom_decoder=None)})
    with pytest.raises(ValueError, match=r"dataset: no atoms are known \(file\), and .* stores weights of atoms"):
        import_digress(path)
    assert import_digress(path, dataset="guacamol").metadata["kind"] == "molecules"


def test_atoms_are_taken_from_the_named_data_set(guacamol: tuple[Path, Made]) -> None:
    path, made = guacamol
    found = import_digress(path, dataset="guacamol", num_steps=3)
    assert found.statistics is not None
    assert found.statistics.vocabulary.atoms == known_data("guacamol").atoms
    assert network(found.policy).config.molecule is not None
    assert_their_logits(found.policy, made, GUACAMOL, GUACAMOL)


# -- numbers of classes: GDPO's ZINC has aromatic bonds


def test_gdpos_zinc_is_a_data_set_of_its_own(tmp_path: Path) -> None:
    made = digress_of("zinc-gdpo", GDPO)
    torch.save({"model." + name: tensor for name, tensor in made[0].items()}, tmp_path / "gdpo.pt")
    for name, said in (("zinc", "has 9 node and 4 edge classes"), ("moses", "has 8 node and 5 edge classes")):
        with pytest.raises(ValueError, match=f"dataset: '{name}' {said}, expected 9 and 5 of .*fits: --dataset=zinc-gdpo") as error:
            import_digress(tmp_path / "gdpo.pt", dataset=name)  # type: ignore[arg-type]
        one_line(error)
    with pytest.raises(ValueError, match="what fits: --dataset=zinc-gdpo"):
        import_digress(tmp_path / "gdpo.pt")
    policy = import_digress(tmp_path / "gdpo.pt", dataset="zinc-gdpo", num_steps=3).policy
    assert_their_logits(policy, made, GDPO, GDPO)
    assert isinstance(policy.edge_kernel, D3PM)
    shares = (0.89740, 0.0472947, 0.062670, 0.0003524, 0.0486)
    assert policy.edge_kernel.noise.prior == pytest.approx([p / sum(shares) for p in shares])
    molecule = network(policy).config.molecule
    assert molecule is not None
    assert (molecule.weights, molecule.max_weight) == ((12.0, 14.0, 16.0, 19.0, 31.0, 32.1, 35.45, 79.9, 126.9), 350.0)
    assert policy.max_nodes == 38


def test_molecules_have_at_most_five_classes_of_bonds(tmp_path: Path) -> None:
    fields = {
        "name": "own",
        "node_counts": [0, 0.5, 0.5],
        "node_marginal": [0.5, 0.5],
        "edge_marginal": [0.5, 0.1, 0.1, 0.1, 0.1, 0.1],
    }
    (tmp_path / "data.json").write_text(json.dumps(fields | {"atoms": ["C", "O"]}))
    with pytest.raises(ValueError, match="edge_marginal: 6 classes, expected at most 5 with atoms: none, single") as error:
        read_statistics(tmp_path / "data.json")
    one_line(error)
    (tmp_path / "data.json").write_text(json.dumps(fields))
    assert read_statistics(tmp_path / "data.json").classes == (2, 6)


def test_no_class_without_mass_is_added(tmp_path: Path) -> None:
    made = digress_of("zinc-gdpo", GDPO)
    path = lightning(tmp_path / "x.ckpt", made[0], hyper_parameters={"dataset_infos": infos("zinc")})
    with pytest.raises(ValueError, match="dataset: 'zinc' has 9 node and 4 edge classes, expected 9 and 5"):
        import_digress(path)
    known = known_data("zinc")
    fields = {name: getattr(known, name) for name in ("node_counts", "node_marginal", "edge_marginal", "atoms", "weights")}
    (tmp_path / "data.json").write_text(json.dumps(fields | {"max_weight": 500}))
    with pytest.raises(ValueError, match="dataset: 'given' has 9 node and 4 edge classes, expected 9 and 5"):
        import_digress(path, statistics=tmp_path / "data.json")


@pytest.mark.parametrize(("classes", "shares"), [(4, (0.7261, 0.2384, 0.0274, 0.0081)), (5, (0.7261, 0.2384, 0.0274, 0.0081, 0.0))])
def test_qm9_has_two_published_sets_of_bonds(tmp_path: Path, classes: int, shares: tuple[float, ...]) -> None:
    made = digress_of("qm9", (4, classes))
    policy = import_digress(lightning(tmp_path / "x.ckpt", made[0]), dataset="qm9", num_steps=3).policy
    assert isinstance(policy.edge_kernel, D3PM)
    assert policy.edge_kernel.noise.prior == pytest.approx(shares)
    assert_their_logits(policy, made, (4, classes), (4, classes))


def test_a_class_that_the_noise_does_not_add_is_refused(tmp_path: Path) -> None:
    made = weights("qm9", (5, 4), (5, 4), features="all", pooling="masked")
    with pytest.raises(ValueError, match="dataset: 'qm9' has 4 node and 4 edge classes, expected 5 and 4"):
        import_digress(lightning(tmp_path / "x.ckpt", made[0]), dataset="qm9")


# -- Graph-GRPO


def graph_grpo(path: Path, made: Made, p0: tuple[int, int], sizes: dict[int, float], largest: int, **hyper: Any) -> Path:
    """A file of the fine-tuned model: two prefixes, learned distributions, the configuration as hyper-parameters."""
    counts = torch.zeros(largest + 1)
    counts[list(sizes)] = torch.tensor(list(sizes.values()))
    buffers = {"p0_node_dist": torch.ones(p0[0]) / p0[0], "p0_edge_dist": torch.ones(p0[1]) / p0[1], "node_count_prob": counts}
    buffers |= {"node_count_buffer_rewards": torch.zeros(10), "_device_buffer": torch.zeros(1)}
    state = {"model." + k: t for k, t in buffers.items()} | {"model.model." + k: t for k, t in made[0].items()}
    torch.save({"state_dict": state, "hyper_parameters": hyper, "grpo_epoch": 7}, path)
    return path


@pytest.mark.parametrize("largest", [38, 50, 70])
def test_n_is_divided_by_the_size_of_the_data(tmp_path: Path, largest: int) -> None:
    made = defog("zinc", ZINC, ZINC, pooling="biased_std", walk_length=20)
    path = graph_grpo(tmp_path / "x.ckpt", made, ZINC, {20: 0.5, largest: 0.5}, largest)
    policy = import_graph_grpo(path, dataset="zinc", num_steps=2).policy
    assert network(policy).config.max_nodes == 38
    assert policy.max_nodes == largest
    assert_their_logits(policy, made, ZINC, ZINC)
    drawn = policy.sample(group_contexts(1, 2, [{"num_nodes": largest}]), generator=torch.Generator().manual_seed(0))
    assert drawn.size.tolist() == [largest] * 2
    with pytest.raises(ValueError, match=f"num_nodes: {largest + 1}, expected 1 to {largest}"):
        policy.sample(group_contexts(1, 1, [{"num_nodes": largest + 1}]))


def test_a_stored_largest_size_comes_before_the_length_of_the_counts(tmp_path: Path) -> None:
    made = defog("zinc", ZINC, ZINC, max_nodes=40, walk_length=20)
    path = lightning(tmp_path / "x.ckpt", made[0], hyper_parameters={"dataset_infos": infos("zinc", max_n_nodes=40)})
    assert_their_logits(import_defog(path, num_steps=2).policy, made, ZINC, ZINC)


@pytest.mark.parametrize(
    ("bounds", "expected"),
    [
        ({}, {2: 0.25, 6: 0.5, 9: 0.25}),
        ({"node_count_min": 4, "node_count_max": 8}, {4: 0.25, 6: 0.5, 8: 0.25}),
        ({"target_node_count": 7, "node_count_min": 4}, {7: 1.0}),
    ],
)
def test_bounds_of_the_sampler_bound_the_sizes(tmp_path: Path, bounds: dict[str, int], expected: dict[int, float]) -> None:
    made = defog(pooling="biased_std")
    path = graph_grpo(tmp_path / "x.ckpt", made, QM9, {2: 0.25, 6: 0.5, 9: 0.25}, 9, grpo=bounds)
    counts = import_graph_grpo(path, dataset="qm9", num_steps=2).policy.node_counts
    assert {n: p for n, p in enumerate(counts) if p} == pytest.approx(expected)


@pytest.mark.parametrize("stored", ["six", 10**9, -1, True, torch.ones(2)])
def test_bounds_that_are_no_sizes_are_refused(tmp_path: Path, stored: Any) -> None:
    path = graph_grpo(tmp_path / "x.ckpt", defog(pooling="biased_std"), QM9, {9: 1.0}, 9, grpo={"target_node_count": stored})
    with pytest.raises(CheckpointError, match=r"stores grpo\.target_node_count .*, expected 1 to 99999") as error:
        import_graph_grpo(path, dataset="qm9")
    one_line(error)


def test_what_graph_grpo_draws_with_is_taken_and_no_more(tmp_path: Path) -> None:
    made = defog(pooling="biased_std")
    sample = {"sample_steps": 1000, "eta": 300, "omega": 0.1, "time_distortion": "polydec"}
    path = graph_grpo(
        tmp_path / "x.ckpt", made, QM9, {9: 1.0}, 9, sample=sample, grpo={"forward_steps": 6, "sampling_temperature": 1.5}
    )
    policy = import_graph_grpo(path, dataset="qm9").policy
    assert isinstance(policy.edge_kernel, FlowEuler)
    assert (policy.num_steps, policy.edge_kernel.eta, policy.edge_kernel.omega, policy.temperature) == (6, 0.0, 0.0, 1.5)
    assert policy.grid[1] == pytest.approx((1 - 1 / 6) ** 2)
    with pytest.raises(
        ValueError, match=r"source: 'defog', expected graph-grpo: .* holds node_count_prob, p0_edge_dist, p0_node_dist"
    ):
        import_defog(path, dataset="qm9")


def test_learned_priors_have_the_classes_of_the_data(tmp_path: Path) -> None:
    made = defog(states=(4, 5), outputs=(4, 5), pooling="biased_std")
    path = graph_grpo(tmp_path / "x.ckpt", made, (4, 4), {9: 1.0}, 9)
    with pytest.raises(ValueError, match=r"p0_edge_dist: 4 classes in .*, expected 5 \(data qm9, noise marginal\)"):
        import_graph_grpo(path, dataset="qm9")


# -- random-walk features of a bare state dict


@pytest.fixture
def masked(tmp_path: Path) -> tuple[Path, Made]:
    """A bare DeFoG state dict: 12 steps of random walks and a mask class, which 13 steps and no such class would fit too."""
    made = defog(states=(5, 5), outputs=QM9)
    torch.save(made[0], tmp_path / "masked.pt")
    return tmp_path / "masked.pt", made


@pytest.mark.parametrize("read", [import_defog, import_graph_grpo])
def test_walks_of_an_unpublished_length_are_refused(masked: tuple[Path, Made], read: Callable[..., Any]) -> None:
    path, _ = masked
    wrong: list[tuple[dict[str, Any], str]] = [
        ({}, r"rrwp_steps: None, expected 12 or 20 as published: .* reads 13 .*noise absorbing gives features rrwp of 12 steps"),
        ({"noise": "marginal"}, "rrwp_steps: None, expected 12 or 20 as published"),
        ({"rrwp_steps": 13}, "rrwp_steps: 13, expected 12 or 20 as published"),
        ({"rrwp_steps": 12}, "rrwp_steps: 12, expected 13"),
        ({"noise": "absorbing", "rrwp_steps": 13}, "rrwp_steps: 13, expected 12"),
    ]
    for options, said in wrong:
        with pytest.raises(ValueError, match=said) as error:
            read(path, dataset="qm9", **options)
        one_line(error)
    told = read(path, dataset="qm9", noise="marginal", rrwp_steps=13, num_steps=2)
    assert network(told.policy).config.walk_length == 13


def test_walks_are_read_with_the_noise_that_is_given(masked: tuple[Path, Made]) -> None:
    path, made = masked
    policy = import_defog(path, dataset="qm9", noise="absorbing", num_steps=2).policy
    assert network(policy).config.walk_length == 12
    assert_their_logits(policy, made, (5, 5))


def test_walks_of_a_stored_length_are_read(tmp_path: Path) -> None:
    made = defog(walk_length=7)
    stored = {"model": {"transition": "marginal", "rrwp_steps": 7, "extra_features": "rrwp"}}
    path = lightning(tmp_path / "x.ckpt", made[0], hyper_parameters={"cfg": stored})
    assert_their_logits(import_defog(path, dataset="qm9", num_steps=2).policy, made)
    stored["model"]["rrwp_steps"] = 8
    with pytest.raises(CheckpointError, match=r"stores model\.rrwp_steps 8, expected 7"):
        import_defog(lightning(tmp_path / "x.ckpt", made[0], hyper_parameters={"cfg": stored}), dataset="qm9")


# -- settings that a file stores


SAMPLE = {"sample_steps": 9, "eta": 5, "omega": 0.05, "time_distortion": "polydec", "rdb": "general", "rdb_crit": "dummy"}


def with_settings(path: Path, made: Made, **groups: Any) -> Path:
    return lightning(path, made[0], hyper_parameters={"cfg": groups})


def test_the_sampler_is_the_stored_one(tmp_path: Path) -> None:
    path = with_settings(tmp_path / "x.ckpt", defog(), sample=SAMPLE)
    policy = import_defog(path, dataset="qm9").policy
    for kernel in (policy.node_kernel, policy.edge_kernel):
        assert isinstance(kernel, FlowEuler)
        assert (kernel.eta, kernel.omega) == (5.0, 0.05)
    assert policy.num_steps == 9
    assert policy.grid[1] == pytest.approx((1 - 1 / 9) ** 2)
    other = import_defog(path, dataset="qm9", num_steps=4, eta=0.0, omega=0.0, sample_distortion="identity").policy
    assert isinstance(other.edge_kernel, FlowEuler)
    assert (other.num_steps, other.edge_kernel.eta, other.edge_kernel.omega) == (4, 0.0, 0.0)
    assert other.grid[1] == pytest.approx(3 / 4)


def test_the_command_prints_what_was_taken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stored = infos("qm9") | {"name": "\x1b[31mqm9"}
    settings = {"sample": SAMPLE, "model": {"transition": "uniform", "hidden_dims": {"n_head": 4}}}
    path = lightning(tmp_path / "x.ckpt", defog(heads=4)[0], hyper_parameters={"cfg": settings, "dataset_infos": stored})
    assert main(["import", str(path), "--from=defog", f"--out={tmp_path / 'out'}", "--eta=2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    found = {name: rest.strip() for name, rest in (line.split(":", 1) for line in lines[:-1])}
    assert lines[-1] == str(tmp_path / "out")
    assert "\x1b" not in "".join(lines)
    assert found["kind"] == "molecules (file)"
    assert found["node classes"] == "C N O F (file)"
    assert found["edge classes"] == "4 (file)"
    assert found["noise"] == "uniform (file)"
    assert found["node prior"] == "0.25, 0.25, 0.25, 0.25 (file)"
    assert found["steps"] == "9 (file)"
    assert found["eta"] == "2 (option)"
    assert found["omega"] == "0.05 (file)"
    assert found["time distortion"] == "polydec (file)"
    assert found["largest size"] == "9 (file)"
    assert found["heads"] == "4 (file)"
    assert load_metadata(tmp_path / "out")["taken"]["omega"] == ["0.05", "file"]


def test_the_number_of_heads_is_the_stored_one(tmp_path: Path) -> None:
    made = digress(heads=4)
    path = with_settings(tmp_path / "x.ckpt", made, model={"hidden_dims": {"n_head": 4}})
    assert_their_logits(import_digress(path, dataset="qm9", num_steps=2).policy, made)
    assert network(import_digress(path, dataset="qm9", heads=2, num_steps=2).policy).config.heads == 2


@pytest.mark.parametrize(
    ("read", "group", "stored", "said"),
    [
        (import_defog, "model", {"extra_features": "rrwp_comp"}, r"stores model\.extra_features 'rrwp_comp', expected rrwp"),
        (import_defog, "model", {"extra_features": "rrwp_double"}, r"stores model\.extra_features 'rrwp_double', expected rrwp"),
        (import_graph_grpo, "model", {"extra_features": "rrwp_comp"}, r"stores model\.extra_features 'rrwp_comp'"),
        (import_defog, "model", {"transition": "edge_marginal"}, "noise: 'edge_marginal', expected one of marginal"),
        (import_defog, "sample", SAMPLE | {"rdb": "column"}, r"stores sample\.rdb 'column', expected general"),
        (import_defog, "sample", SAMPLE | {"eta": "much"}, r"stores sample\.eta 'much', expected a number"),
        (
            import_defog,
            "sample",
            SAMPLE | {"eta": torch.ones(3, 3)},
            r"stores sample\.eta tensor\(\[\[1\., 1\., 1\.\], .*, expected a number",
        ),
        (import_defog, "sample", SAMPLE | {"omega": float("nan")}, r"stores sample\.omega nan, expected a number"),
        (import_defog, "sample", SAMPLE | {"sample_steps": 0}, r"stores sample\.sample_steps 0, expected a whole number"),
        (import_defog, "sample", SAMPLE | {"time_distortion": "beta"}, r"stores sample\.time_distortion 'beta', expected one of"),
        (import_digress, "model", {"hidden_dims": {"n_head": 3}}, "stores n_head 3, expected a divisor of the width, 16"),
        (import_digress, "model", {"type": "continuous"}, r"stores model\.type 'continuous', expected discrete"),
        (import_digress, "model", {"diffusion_noise_schedule": "polynomial_2"}, "'polynomial_2', expected cosine"),
        (import_digress, "model", {"extra_features": "cycles"}, r"stores model\.extra_features 'cycles', expected all"),
    ],
)
def test_settings_of_another_model_are_refused(
    tmp_path: Path, read: Callable[..., Any], group: str, stored: dict[str, Any], said: str
) -> None:
    path = with_settings(tmp_path / "x.ckpt", digress() if read is import_digress else defog(), **{group: stored})
    with pytest.raises(ValueError, match=said) as error:
        read(path, dataset="qm9")
    one_line(error)


def test_rates_of_another_design_do_not_matter_without_them(tmp_path: Path) -> None:
    path = with_settings(tmp_path / "x.ckpt", defog(), sample=SAMPLE | {"rdb": "column"})
    assert import_defog(path, dataset="qm9", eta=0.0).policy.num_steps == 9


# -- padding as the peers have it, where it is not in the pooling


def logits(policy: GraphPolicy, made: Made) -> Tensor:
    graphs = torch.zeros(1, 3, dtype=torch.long), torch.zeros(1, 3, 3, dtype=torch.long)
    found: Tensor = network(policy)(*graphs, torch.tensor([0.5]), torch.ones(1, 3, dtype=torch.bool))[0]
    return found


@pytest.mark.parametrize(
    ("read", "made", "options"),
    [
        (import_graph_grpo, defog(pooling="biased_std", count_padding=True), {}),
        (import_digress, digress(pooling="variance", five="corrected", count_padding=True), {"variant": "fixed_bug"}),
        (import_digress, digress(pooling="padded"), {}),
        (import_defog, defog(pooling="padded"), {}),
    ],
    ids=["graph-grpo", "fixed_bug", "digress", "defog"],
)
def test_published_padding_is_the_equations_with_padding(
    tmp_path: Path, read: Callable[..., Any], made: Made, options: dict[str, Any]
) -> None:
    path = lightning(tmp_path / "x.ckpt", made[0])
    policy = read(path, dataset="qm9", num_steps=2, padding="published", **options).policy
    assert_their_logits(policy, made)
    safe = read(path, dataset="qm9", num_steps=2, **options).policy
    assert (logits(policy, made) - logits(safe, made)).abs().max() > 1e-4


def test_published_padding_reaches_the_largest_size_that_is_drawn(tmp_path: Path) -> None:
    made = defog(pooling="biased_std", count_padding=True)
    path = graph_grpo(tmp_path / "x.ckpt", made, QM9, {12: 1.0}, 12)
    policy = import_graph_grpo(path, dataset="qm9", num_steps=2, padding="published").policy
    assert policy.max_nodes == 12
    assert_their_logits(policy, made)
    folder = import_checkpoint(path, "graph-grpo", tmp_path / "out", dataset="qm9", num_steps=2, padding="published")
    assert_their_logits(read_policy(folder), made)


# -- recomputation


@pytest.mark.parametrize("again", [False, True])
def test_layers_are_computed_again_where_asked_for(tmp_path: Path, again: bool) -> None:
    path = lightning(tmp_path / "x.ckpt", defog("planar", PLANAR, PLANAR)[0])
    options = ["--checkpoint_layers=true"] if again else []
    assert main(["import", str(path), "--from=defog", "--dataset=planar", f"--out={tmp_path / 'out'}", *options]) == 0
    assert network(read_policy(tmp_path / "out")).checkpoint_layers is again
