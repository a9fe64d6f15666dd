"""Checkpoints of DiGress, DeFoG and Graph-GRPO made here: the same logits as the equations, a whole policy, every misfit named."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from discrete_grpo.core.rollout import group_contexts
from discrete_grpo.diffusion.flow import FlowEuler
from discrete_grpo.diffusion.kernels import D3PM
from discrete_grpo.domains import graph6
from discrete_grpo.importers import import_checkpoint, import_defog, import_digress, import_graph_grpo
from discrete_grpo.importers.graph_data import DataName, known_data, read_statistics
from discrete_grpo.importers.lightning import plain, read_lightning
from discrete_grpo.policies.graph import GraphPolicy
from discrete_grpo.recipes.families import SamplerOptions
from discrete_grpo.recipes.loading import load_policy, with_sampler
from discrete_grpo.runs import checkpoint
from discrete_grpo.runs.checkpoint import CheckpointError, load_metadata
from discrete_grpo.testing import check_policy
from discrete_grpo.training.config import GRPOConfig
from discrete_grpo.training.trainer import GRPOTrainer
from tests.broken_graph_policies import more_padding, relabelled
from tests.imported import PLANAR, assert_their_logits, defog, digress, lightning, one_line

# -- the same function


@pytest.mark.parametrize("wrap", ["lightning", "gdpo", "bare"])
def test_digress_gives_the_published_logits(tmp_path: Path, wrap: str) -> None:
    made = digress()
    path = tmp_path / "x.ckpt"
    if wrap == "lightning":
        lightning(path, made[0])
    else:
        torch.save({("model." if wrap == "gdpo" else "") + k: t for k, t in made[0].items()}, path)
    found = import_digress(path, dataset="qm9", num_steps=20)
    assert_their_logits(found.policy, made)
    kernel = found.policy.node_kernel
    assert isinstance(kernel, D3PM)
    assert kernel.noise.prior == pytest.approx((0.7230, 0.1151, 0.1593, 0.0026))
    assert found.policy.num_steps == 20
    assert float(kernel.noise.schedule.alpha_bar(torch.tensor(0.0))) == pytest.approx(0.99991, abs=1e-5)


@pytest.mark.parametrize(
    ("options", "how"),
    [
        ({"padding": "published"}, {"pooling": "padded"}),
        ({"variant": "fixed_bug"}, {"pooling": "variance", "five": "corrected"}),
        ({"heads": 4, "noise": "uniform"}, {"heads": 4}),
    ],
)
def test_variants_of_digress(tmp_path: Path, options: dict[str, Any], how: dict[str, Any]) -> None:
    made = digress(**how)
    assert_their_logits(import_digress(lightning(tmp_path / "x.ckpt", made[0]), dataset="qm9", **options).policy, made)


def test_defog_gives_the_published_logits(tmp_path: Path) -> None:
    made = defog()
    options: dict[str, Any] = {"dataset": "qm9", "eta": 2.0, "omega": 0.1, "num_steps": 9, "sample_distortion": "polydec"}
    policy = import_defog(lightning(tmp_path / "x.ckpt", made[0]), **options).policy
    assert_their_logits(policy, made)
    assert isinstance(policy.edge_kernel, FlowEuler)
    assert (policy.edge_kernel.eta, policy.edge_kernel.omega, policy.num_steps) == (2.0, 0.1, 9)
    assert policy.grid[1] == pytest.approx((1 - 1 / 9) ** 2)
    plain = import_defog(tmp_path / "x.ckpt", dataset="qm9").policy
    assert isinstance(plain.edge_kernel, FlowEuler)
    assert (plain.edge_kernel.eta, plain.edge_kernel.omega) == (0.0, 0.0)  # the file stores none


@pytest.mark.parametrize("more", [0, 1])
def test_defog_with_a_mask_class_which_is_never_predicted(tmp_path: Path, more: int) -> None:
    made = defog(states=(5, 5), outputs=(4 + more, 4))
    policy = import_defog(lightning(tmp_path / "x.ckpt", made[0]), dataset="qm9", noise="absorbing").policy
    assert_their_logits(policy, made, (5, 5))
    assert isinstance(policy.node_kernel, FlowEuler)
    assert policy.node_kernel.noise.prior == (0.0, 0.0, 0.0, 0.0, 1.0)
    assert policy.node_kernel.noise.num_clean == 4


def test_graph_grpo_takes_the_stored_prior_and_sizes(tmp_path: Path) -> None:
    made = defog("planar", PLANAR, PLANAR, pooling="biased_std")  # n is divided by 64 whatever sizes are drawn
    buffers = {"model.p0_node_dist": torch.ones(1), "model.p0_edge_dist": torch.tensor([0.7, 0.3])}
    buffers |= {"model.node_count_prob": torch.tensor([0.0, 0.0, 0.0, 0.25, 0.5, 0.25]), "model._device_buffer": torch.zeros(1)}
    state = buffers | {"model.model." + k: t for k, t in made[0].items()}
    torch.save({"state_dict": state}, tmp_path / "x.ckpt")
    imported = import_graph_grpo(tmp_path / "x.ckpt", dataset="planar", num_steps=7)
    policy = imported.policy
    assert_their_logits(policy, made, PLANAR, PLANAR)
    assert isinstance(policy.edge_kernel, FlowEuler)
    assert (policy.edge_kernel.eta, policy.edge_kernel.omega, policy.temperature) == (0.0, 0.0, 1.0)
    assert imported.taken["eta"][1] == imported.taken["omega"][1] == "published"
    assert imported.taken["features"][0] == "rrwp, 12 steps"
    assert policy.encode is graph6.graphs_to_batch
    assert policy.edge_kernel.noise.prior == pytest.approx((0.7, 0.3))
    assert policy.node_counts == (0.0, 0.0, 0.0, 0.25, 0.5, 0.25)


# -- what a file stores beside the weights


MODULE = "digress_of_somebody"


@pytest.fixture
def theirs() -> Iterator[types.ModuleType]:
    """Classes by names of the peers', there while a file is written and gone when it is read."""
    module = types.ModuleType(MODULE)
    for name in ("QM9infos", "DictConfig", "AnyNode", "Callback"):
        setattr(module, name, type(name, (), {"__module__": MODULE}))
    sys.modules[MODULE] = module
    yield module
    sys.modules.pop(MODULE, None)


def hyper_parameters(module: Any) -> dict[str, Any]:
    infos = module.QM9infos()
    infos.name, infos.atom_decoder, infos.max_weight = "qm9", ["C", "N", "O", "F", "Y"], 150
    infos.n_nodes, infos.node_types = torch.tensor([0.0, 0.5, 0.5]), torch.tensor([0.4, 0.3, 0.2, 0.1])
    infos.edge_types, infos.atom_weights = torch.tensor([0.6, 0.2, 0.1, 0.1]), {0: 12, 1: 14, 2: 16, 3: 19}

    def node(value: Any) -> Any:
        made = module.AnyNode()
        made._val = value
        return made

    def config(content: dict[str, Any]) -> Any:
        made = module.DictConfig()
        made._content = content
        return made

    model = config({"transition": node("marginal"), "diffusion_steps": node(30)})
    return {"cfg": config({"model": model, "sample": config({"sample_steps": node(11)})}), "dataset_infos": infos}


def test_stored_data_and_settings_are_read_without_their_code(tmp_path: Path, theirs: Any) -> None:
    made = digress(max_nodes=2)
    more: dict[str, Any] = {"hyper_parameters": hyper_parameters(theirs), "callbacks": {"x": theirs.Callback()}}
    path = lightning(tmp_path / "x.ckpt", made[0], **more)
    sys.modules.pop(MODULE)
    found = import_digress(path)
    assert found.policy.num_steps == 30
    assert found.policy.node_counts == (0.0, 0.5, 0.5)
    assert isinstance(found.policy.node_kernel, D3PM)
    assert found.policy.node_kernel.noise.prior == pytest.approx((0.4, 0.3, 0.2, 0.1))
    assert found.statistics is not None
    assert found.statistics.vocabulary.atoms == ("C", "N", "O", "F")
    made = defog(max_nodes=2)
    path = lightning(tmp_path / "y.ckpt", made[0], hyper_parameters=plain(read_lightning(path)["hyper_parameters"]))
    assert import_defog(path).policy.num_steps == 11


class Evil:
    """Makes a folder when unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.makedirs, (str(self.path), 0o777, True)


def test_nothing_in_a_file_is_executed(tmp_path: Path, theirs: Any) -> None:
    ran = tmp_path / "ran"
    theirs.QM9infos.__setstate__ = lambda self, state: ran.mkdir(exist_ok=True)
    more: dict[str, Any] = {
        "hyper_parameters": hyper_parameters(theirs),
        "callbacks": [Evil(ran)],
        "loops": {"set": {1, 2}, "path": tmp_path},
    }
    path = lightning(tmp_path / "x.ckpt", digress(max_nodes=2)[0], **more)
    assert import_digress(path).policy.max_nodes == 2
    assert not ran.exists()
    torch.load(path, weights_only=False)
    assert ran.exists(), "the file would have run, had it been unpickled"


def test_statistics_from_a_file(tmp_path: Path) -> None:
    state, _ = digress(max_nodes=2)
    fields: dict[str, Any] = {"node_counts": [0, 1, 3], "node_marginal": [4, 3, 2, 1], "edge_marginal": [6, 2, 1, 1]}
    fields |= {"atoms": ["C", "N", "O", "F"], "weights": [12, 14, 16, 19], "max_weight": 150, "steps": 40}
    (tmp_path / "data.json").write_text(json.dumps(fields))
    found = import_digress(lightning(tmp_path / "x.ckpt", state), statistics=tmp_path / "data.json")
    assert found.policy.node_counts == (0.0, 0.25, 0.75)
    assert found.policy.num_steps == 40
    for change, said in (
        ({"atoms": ["C", "N", "O", "Xx"]}, "expected an element symbol"),
        ({"node_counts": [1, 1]}, "expected shares of 0, 1, 2, ... nodes, the first 0"),
        ({"weights": [1.0]}, "weights: 1, expected 4, one per node class"),
        ({"colour": 3}, "colour unknown"),
        ({"node_marginal": [4, 3, 2, float("inf")]}, "node_marginal: .*, expected shares >= 0 with a positive sum"),
        ({"node_marginal": [4, 3, 2, 10**400]}, "statistics: .*"),
        ({"atoms": {"O": 1, "C": 0}}, "statistics: .*: atoms is of type dict, expected a list"),
        ({"atoms": "CNOF"}, "statistics: .*: atoms is of type str, expected a list"),
        ({"steps": "abc"}, "steps: 'abc', expected a whole number, at least 1"),
        ({"steps": 2.5}, "steps: 2.5, expected a whole number, at least 1"),
        ({"max_weight": 0}, "max_weight: 0"),
    ):
        (tmp_path / "data.json").write_text(json.dumps(fields | change))
        with pytest.raises(ValueError, match=said) as error:
            import_digress(tmp_path / "x.ckpt", statistics=tmp_path / "data.json")
        one_line(error)
    (tmp_path / "data.json").write_text("[]")
    with pytest.raises(ValueError, match="holds list, expected a dictionary"):
        read_statistics(tmp_path / "data.json")


@pytest.mark.parametrize("name", ["qm9", "qm9-h", "zinc", "zinc-gdpo", "moses", "guacamol", "planar", "tree", "sbm"])
def test_the_published_data_sets_are_whole(name: DataName) -> None:
    known = known_data(name)
    largest = {
        "qm9": 9,
        "qm9-h": 29,
        "zinc": 38,
        "zinc-gdpo": 38,
        "moses": 27,
        "guacamol": 88,
        "planar": 64,
        "tree": 64,
        "sbm": 187,
    }
    assert len(known.node_counts) == largest[name] + 1
    assert sum(known.node_counts) == pytest.approx(160 if name == "sbm" else 1, abs=2e-3)
    assert sum(known.edge_marginal) == pytest.approx(1, abs=0.06)
    assert bool(known.atoms) == bool(known.weights) == (known.steps == 500)
    assert dataclasses.replace(known, steps=20.0).steps == 20  # type: ignore[arg-type]


# -- a whole policy


def small_counts(policy: GraphPolicy, counts: tuple[float, ...]) -> GraphPolicy:
    return GraphPolicy(**policy.init_args() | {"node_counts": counts, "decode": None}).eval()


@pytest.mark.parametrize("source", ["digress", "defog", "graph-grpo"])
def test_an_import_draws_scores_trains_and_is_kept(tmp_path: Path, source: Any) -> None:
    made = digress() if source == "digress" else defog()
    path = lightning(tmp_path / "x.ckpt", made[0])
    folder = import_checkpoint(path, source, tmp_path / "out", dataset="qm9", num_steps=5)
    assert load_metadata(folder)["kind"] == "molecules"
    policy = load_policy(folder)
    assert not policy.network.checkpoint_layers, "recomputation is opt-in"
    contexts = group_contexts(3, 4)
    rollout = policy.sample(contexts, generator=torch.Generator().manual_seed(0))
    assert len(rollout.samples) == 12
    total = 0.0
    for sites in policy.sites(rollout):
        total = total + sites.log_probs.gather(-1, sites.action.long().unsqueeze(-1)).squeeze(-1).where(sites.mask, 0.0).sum(-1)
    torch.testing.assert_close(total, rollout.logp, atol=1e-4, rtol=1e-5)
    before = {k: t.clone() for k, t in policy.state_dict().items()}
    config = GRPOConfig(max_steps=1, num_generations=4, generation_batch_size=8, beta=0.05, learning_rate=1e-3)
    (line,) = GRPOTrainer(policy, lambda samples, **_: [float(len(s or "")) for s in samples], config).train()
    assert "reward" in line
    assert any(not torch.equal(t, before[k]) for k, t in policy.state_dict().items())
    again = checkpoint.read_policy(folder)
    assert all(torch.equal(t, before[k]) for k, t in again.state_dict().items())


def test_plain_graphs_are_plain_graphs(tmp_path: Path) -> None:
    made = defog("tree", PLANAR, PLANAR)
    folder = import_checkpoint(lightning(tmp_path / "x.ckpt", made[0]), "defog", tmp_path / "out", dataset="tree", num_steps=2)
    assert load_metadata(folder)["kind"] == "graphs"
    policy = small_counts(checkpoint.read_policy(folder), (0.0, 0.0, 0.0, 0.5, 0.5))
    assert len(policy.sample(group_contexts(1, 2)).samples) == 2


@pytest.mark.parametrize("source", ["digress", pytest.param("defog", marks=pytest.mark.slow)])
def test_the_laws_of_policies(tmp_path: Path, source: str) -> None:
    made = digress() if source == "digress" else defog()
    read: Any = import_digress if source == "digress" else import_defog
    found = read(lightning(tmp_path / "x.ckpt", made[0]), dataset="qm9", num_steps=3, checkpoint_layers=False).policy
    policy = small_counts(found, (0.0, 0.0, 0.3, 0.4, 0.3))
    changes: dict[str, Any] = {"pad": more_padding, "permute": relabelled}
    skip = {"learning"} if source == "defog" else {"learning", "permutation"}  # DiGress's eigenvectors have signs
    check_policy(policy, group_contexts(3, 2), samples=300, skip=skip, **changes).raise_on_failure()


# -- what does not fit


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda s: s.pop("tf_layers.1.self_attn.e_mul.bias"), r"tf_layers\.1\.self_attn\.e_mul\.bias missing"),
        (lambda s: s.pop("mlp_in_E.2.weight"), r"mlp_in_E\.2\.weight missing"),
        (lambda s: s.update({"tf_layers.0.in_E.weight": torch.zeros(2, 2)}), r"tf_layers\.0\.in_E\.weight unexpected"),
        (lambda s: s.update({"tf_layers.0.linX2.weight": torch.zeros(3, 3)}), r"linX2\.weight \(3, 3\) for \(16, 12\)"),
        (lambda s: s.update({"mlp_in_X.0.weight": torch.zeros(10, 40)}), r"reads \(40, 4, 13\) numbers of nodes, edges and graph"),
        (lambda s: s.pop("mlp_in_X.0.weight"), r"has no mlp_in_X\.0\.weight"),
        (lambda s: s.clear(), "expected a network of DiGress, DeFoG or Graph-GRPO"),
    ],
)
def test_tensors_that_do_not_fit_are_named(tmp_path: Path, spoil: Any, said: str) -> None:
    state, _ = digress()
    spoil(state)
    with pytest.raises(CheckpointError, match=said) as error:
        import_digress(lightning(tmp_path / "x.ckpt", state), dataset="qm9")
    one_line(error)


def test_options_that_do_not_fit_are_named(tmp_path: Path) -> None:
    path = lightning(tmp_path / "x.ckpt", digress()[0])
    wrong: list[tuple[dict[str, Any], str]] = [
        ({}, "dataset: None, and .*x.ckpt does not store its data; expected qm9, "),
        ({"dataset": "qm8"}, "dataset: 'qm8', expected one of qm9, "),
        ({"dataset": "zinc"}, "dataset: 'zinc' has 9 node and 4 edge classes, expected 4 and 4 of .*; what fits: --dataset=qm9"),
        ({"dataset": "qm9", "noise": "absorbing"}, "noise: 'absorbing', expected marginal or uniform"),
        ({"dataset": "qm9", "heads": 3}, "heads: 3, expected a divisor of 16, the width of the tensors"),
        ({"dataset": "qm9", "heads": 0}, "heads: 0, expected at least 1"),
        ({"dataset": "qm9", "num_steps": 21, "diffusion_steps": 20}, r"num_steps: 21, expected 1 to 20 \(diffusion_steps\)"),
        ({"dataset": "qm9", "num_steps": 0}, r"num_steps: 0, expected 1 to 500 \(diffusion_steps\)"),
        ({"dataset": "qm9", "diffusion_steps": 50.7}, "diffusion_steps: 50.7, expected a whole number, at least 1"),
        ({"dataset": "qm9", "variant": "new"}, "variant: 'new', expected one of main, fixed_bug"),
        ({"dataset": "qm9", "padding": "none"}, "padding: 'none', expected one of safe, published"),
        ({"dataset": "qm9", "statistics": "x.json"}, "statistics: x.json, expected none beside dataset 'qm9'"),
    ]
    for options, said in wrong:
        with pytest.raises(ValueError, match=said) as error:
            import_digress(path, **options)
        one_line(error)
    with pytest.raises(ValueError, match=r"^trust: True, expected none: digress has dataset, statistics"):
        import_checkpoint(path, "digress", tmp_path / "out", trust=True)
    for steps, told in ((50.7, "50.7, expected a whole number"), (0, "0, expected at least 1"), ("a", "'a', expected a whole")):
        with pytest.raises(ValueError, match=f"^num_steps: {told}"):
            import_defog(lightning(tmp_path / "flow.ckpt", defog()[0]), dataset="qm9", num_steps=steps)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^sample_distortion: 'sin', expected one of identity"):
        import_defog(tmp_path / "flow.ckpt", dataset="qm9", sample_distortion="sin")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^num_steps: 501, expected 1 to 500 \(diffusion_steps\)"):
        with_sampler(import_digress(path, dataset="qm9").policy, SamplerOptions(num_steps=501))
    with pytest.raises(ValueError, match="num_nodes: 12, expected 1 to 9"):
        import_digress(path, dataset="qm9").policy.sample(group_contexts(1, 1, [{"num_nodes": 12}]))


@pytest.mark.parametrize("content", [b"", b"no pickle", b"PK\x03\x04 broken"])
def test_damaged_files_are_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.ckpt"
    with pytest.raises(CheckpointError, match="is no file"):
        import_defog(path, dataset="qm9")
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"x\.ckpt") as error:
        import_defog(path, dataset="qm9")
    one_line(error)


def test_the_benchmark_runs_and_its_sides_agree(tmp_path: Path) -> None:
    from benchmarks.import_speed import main

    arguments = [
        "--cases",
        "qm9",
        "--layers",
        "1",
        "--batch",
        "2",
        "--repeats",
        "1",
        "--without-grpo",
        "--out",
        str(tmp_path / "x.json"),
    ]
    found = main(arguments)["cases"]["qm9"]
    assert found["largest_difference"] < 1e-5
    assert 0 < found["activations"]["checkpointed"] < found["activations"]["ours"]
    assert all(found[name]["ratio"] > 0 for name in ("update_fp32", "update_fp32_checkpointed"))
