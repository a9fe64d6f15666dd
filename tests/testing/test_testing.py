"""The conformance kit: healthy policies pass, and each law is seen to fail on the mistake it is there for."""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from scipy.stats import chi2
from torch import nn

from discrete_grpo import score_sites
from discrete_grpo.core.categorical import Scores, gather
from discrete_grpo.core.loss import grpo_loss
from discrete_grpo.core.rollout import Context, group_contexts
from discrete_grpo.diffusion.kernels import D3PM
from discrete_grpo.diffusion.noise import uniform
from discrete_grpo.diffusion.schedules import CosineSchedule
from discrete_grpo.domains.graphs import node_mask, permute, symmetrise, unpack, upper
from discrete_grpo.policies.graph import FixedSites, GraphPolicy
from discrete_grpo.testing import LAWS, Report, Row, check_policy, learning, probability, relabelling, replay
from tests import broken_policies as twins
from tests.toys import node_classes, share_of_class_two, tiny_network, tiny_policy

ROOT = Path(__file__).parents[2]
WORDS = group_contexts(3, 3)
SIZES = [Context(k // 2, {"num_nodes": 2 + k // 2 % 2}) for k in range(6)]


def small_graphs(kind: type[GraphPolicy] = GraphPolicy, seed: int = 0) -> GraphPolicy:
    """Graphs of 2 or 3 nodes of two classes in two steps, from a network whose logits are spread apart."""
    network = tiny_network(2, 2, seed=seed)
    with torch.no_grad():
        for head in (network.node_out[-1], network.edge_out[-1]):
            assert isinstance(head, nn.Linear)
            head.weight.add_(0.3 * torch.randn(head.weight.shape, generator=torch.Generator().manual_seed(seed)))
    kernels = D3PM(uniform(2, CosineSchedule())), D3PM(uniform(2, CosineSchedule()))
    return kind(network, *kernels, [0.0, 0.0, 0.5, 0.5], num_steps=2)


def check_words(policy: twins.Words, contexts: Sequence[Context] = WORDS, **options: Any) -> Report:
    settings: dict[str, Any] = {"space": policy.space, "trusted": ["tests"], "samples": 800, "skip": ["learning"]} | options
    return check_policy(policy, contexts, **settings)


def check_graphs(policy: GraphPolicy, **options: Any) -> Report:
    given: dict[str, Any] = {
        "space": twins.graph_space(policy),
        "permute": twins.relabelled,
        "pad": twins.more_padding,
        "trusted": ["discrete_grpo", "tests"],
    }
    return check_policy(policy, SIZES, **given | options)


def row(report: Report, law: str) -> Row:
    return next(r for r in report.rows if r.law == law)


# ---------------------------------------------------------------- healthy policies


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_the_graph_policy_passes_every_law(dtype: torch.dtype) -> None:
    policy = small_graphs().to(dtype)
    start = time.process_time()
    report = check_graphs(policy)
    report.raise_on_failure()
    assert report.skipped == ()
    assert tuple(r.law for r in report.rows) == tuple(LAWS)
    assert time.process_time() - start < 15


def test_a_graph_policy_passes_without_a_space() -> None:
    contexts = [Context(k // 2, {"num_nodes": [4, 2, 3][k // 2]}) for k in range(6)]
    report = check_policy(tiny_policy(), contexts, reward=share_of_class_two, samples=1000)
    report.raise_on_failure()
    assert report.skipped == ("replayable", "total mass", "frequencies")
    assert row(report, "replayable").note == "can_draw is False for every sample drawn"
    assert row(report, "permutation").note == "nodes relabelled by the kit"


def test_words_of_any_length_pass_every_law() -> None:
    policy = twins.Words(temperature=0.8)
    assert policy.sample(WORDS, generator=torch.Generator().manual_seed(0)).num_steps <= 3
    report = check_words(policy, samples=3000, skip=[])
    report.raise_on_failure()
    assert report.skipped == ("permutation", "replayable")
    assert row(report, "permutation").note == "no permute given"
    assert int(row(report, "padding").note.split()[3]) > 0  # there were steps without units


def test_words_with_columns_pass() -> None:
    contexts = group_contexts(2, 4, [{"mood": 0}, {"mood": 1}])
    check_words(twins.Words(), contexts, skip=["frequencies"]).raise_on_failure()


def test_the_policy_is_left_as_it_was() -> None:
    policy = twins.Words().train()
    weights = {name: value.clone() for name, value in policy.state_dict().items()}
    before = torch.random.get_rng_state()
    check_words(policy, skip=[])
    assert torch.equal(torch.random.get_rng_state(), before)
    assert policy.training
    assert all(torch.equal(value, weights[name]) for name, value in policy.state_dict().items())
    assert all(p.grad is None for p in policy.parameters())


# ---------------------------------------------------------------- mistakes, each caught by name

MISTAKES: list[tuple[type[twins.Words], str]] = [
    (twins.NumberMask, "shapes"),
    (twins.ActionBeyond, "shapes"),
    (twins.DropsColumns, "contexts"),
    (twins.Unnormalised, "probabilities"),
    (twins.Unnormalised, "total mass"),
    (twins.CountsStops, "units"),
    (twins.UnmaskedPadding, "units"),
    (twins.UnmaskedPadding, "padding"),
    (twins.StoresMeans, "stored log-probs"),
    (twins.ForgottenLatent, "stored log-probs"),
    (twins.ResampledLatent, "ratio eval"),
    (twins.ResampledLatent, "reinforce"),
    (twins.HalfTables, "ratio bf16"),
    (twins.MatrixTables, "probabilities bf16"),
    (twins.SeesItsBatch, "batch size"),
    (twins.SpellsImpossible, "replayable"),
    (twins.StepsDescending, "steps"),
    (twins.Raises, "steps"),
    (twins.RawLogits, "frequencies"),
    (twins.RawLogits, "calibration"),
    (twins.GlobalRandom, "generator"),
    (twins.GlobalRandom, "global random state"),
    (twins.ResetsGlobalRandom, "global random state"),
    (twins.MutatesWeights, "unchanged"),
    (twins.SwitchesMode, "unchanged"),
    (twins.KeepsGraph, "detached"),
    (twins.NoGradient, "gradient"),
    (twins.NoGradient, "reference"),
    (twins.NoGradient, "derivative"),
    (twins.ReversedGradient, "derivative"),
    (twins.InfiniteGradient, "gradient"),
    (twins.NoInitArgs, "checkpoint"),
    (twins.ForgetsTemperature, "checkpoint"),
    (twins.OddStates, "rollout file"),
]
ELSEWHERE = {"mask", "ratio train", "permutation", "learning", "gaussian sites"}  # below, and in tests/policies/test_fields.py
REPORTS: dict[type[twins.Words], Report] = {}


@pytest.mark.parametrize(("kind", "law"), MISTAKES, ids=lambda x: x if isinstance(x, str) else x.__name__)
def test_a_mistake_is_caught_by_name(kind: type[twins.Words], law: str) -> None:
    if kind not in REPORTS:
        policy = kind(temperature=0.8 if kind is twins.ForgetsTemperature else 1.0)
        REPORTS[kind] = check_words(policy, group_contexts(3, 3, [{"tag": k} for k in range(3)]))
    assert law in REPORTS[kind].failed, str(REPORTS[kind])


def test_a_policy_that_learns_from_any_word_passes() -> None:
    report = check_words(twins.Spells(), group_contexts(6, 3))
    report.raise_on_failure()
    assert row(report, "replayable").note == "18 samples"


@pytest.mark.parametrize(
    ("kind", "claim"), [(twins.SpellsWithoutStop, "log-probs of the draw"), (twins.SpellsTheFirst, "samples as given")]
)
def test_mistakes_in_the_trajectories_of_words_that_were_not_drawn(kind: type[twins.Words], claim: str) -> None:
    report = check_words(kind(), group_contexts(6, 3))
    assert report.failed == ("replayable",)
    assert claim in row(report, "replayable").note


def test_every_law_is_seen_to_fail() -> None:
    assert {law for _, law in MISTAKES} | ELSEWHERE == LAWS.keys()


def test_dropout_in_scoring_is_caught_in_train_mode_only() -> None:
    assert check_words(twins.Words(dropout=0.3)).failed == ("ratio train",)


def test_edges_counted_twice_are_caught_although_drawn_and_scored_alike() -> None:
    report = check_graphs(small_graphs(twins.EdgesTwice), skip=["learning"])
    assert {"total mass", "frequencies"} <= set(report.failed)
    assert {"stored log-probs", "units", "ratio eval", "permutation"}.isdisjoint(report.failed)


def test_padded_nodes_are_caught() -> None:
    report = check_graphs(small_graphs(twins.PaddedNodes), skip=["learning"])
    assert {"padding", "units"} <= set(report.failed)


def test_a_graph_policy_that_numbers_its_nodes_is_caught() -> None:
    assert check_graphs(small_graphs(twins.NumbersNodes), skip=["learning"]).failed == ("permutation",)


class NumberedNetwork(nn.Module):
    """A network that adds an embedding of the node's number, as an encoder of sequences does."""

    def __init__(self, inner: nn.Module, most: int = 8, classes: int = 3) -> None:
        super().__init__()
        self.inner = inner
        self.place = nn.Parameter(torch.randn(most, classes, generator=torch.Generator().manual_seed(0)))

    def init_args(self) -> dict[str, Any]:
        return {"inner": self.inner}

    def forward(self, nodes: Any, edges: Any, time: Any, mask: Any) -> Any:
        of_nodes, of_edges = self.inner(nodes, edges, time, mask)
        return of_nodes + self.place[: nodes.shape[1]], of_edges


@pytest.mark.parametrize("decode", [None, node_classes], ids=["graphs", "decoded"])
@pytest.mark.parametrize("numbered", [False, True])
def test_the_kit_relabels_graphs_by_itself(decode: Any, numbered: bool) -> None:
    plain = tiny_policy()
    network = NumberedNetwork(plain.network) if numbered else plain.network
    policy = GraphPolicy(network, plain.node_kernel, plain.edge_kernel, plain.node_counts, num_steps=4, decode=decode)
    contexts = [Context(k // 2, {"num_nodes": [4, 2, 3][k // 2]}) for k in range(6)]
    columns: dict[str, Any] = {"num_nodes": 4, "fixed": FixedSites({1: 1}, {(1, 2): 1})}
    report = check_policy(
        policy, [*contexts, Context(9, columns)], samples=50, trusted=["discrete_grpo", "tests"], skip=["learning"]
    )
    assert report.failed == (("permutation",) if numbered else ()), str(report)
    assert row(report, "permutation").note == "nodes relabelled by the kit"


def test_relabelling_moves_every_state_of_nodes_and_pairs_as_the_graphs_do() -> None:
    policy = tiny_policy()
    columns: list[dict[str, Any]] = [{"num_nodes": 4, "fixed": FixedSites({1: 1}, {(1, 2): 1})}, {"num_nodes": 3}, {"num_nodes": 2}]
    drawn = policy.sample(group_contexts(3, 3, columns), generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(1)
    moved = relabelling.relabelled(drawn, generator)
    exists = node_mask(drawn.size, 4)
    order = torch.where(exists, torch.rand(9, 4, generator=torch.Generator().manual_seed(1)), 2.0 + torch.arange(4)).argsort(-1)
    assert not torch.equal(order, torch.arange(4).expand(9, -1))
    for k in range(drawn.num_steps + 1):
        before = unpack(drawn.states["nodes"][:, k], drawn.states["pairs"][:, k], exists)
        wanted = permute(before, order)
        found = unpack(moved.states["nodes"][:, k], moved.states["pairs"][:, k], exists)
        assert torch.equal(found.nodes, wanted.nodes)
        assert torch.equal(found.edges, wanted.edges)
    free = permute(unpack(drawn.states["free_nodes"].byte(), drawn.states["free_pairs"].byte(), exists), order)
    assert torch.equal(moved.states["free_nodes"].long(), free.nodes)
    assert torch.equal(moved.states["free_pairs"].long(), upper(free.edges))
    full = replace(drawn, states={"nodes": drawn.states["nodes"], "edges": symmetrise(drawn.states["pairs"].flatten(0, 1), 4)})
    full = replace(full, states={**full.states, "edges": full.states["edges"].unflatten(0, drawn.states["nodes"].shape[:2])})
    again = relabelling.relabelled(full, torch.Generator().manual_seed(1))
    assert torch.equal(upper(again.states["edges"].flatten(0, 1)), moved.states["pairs"].flatten(0, 1))


def test_states_that_cannot_be_relabelled_are_named() -> None:
    drawn = small_graphs().sample(SIZES, generator=torch.Generator().manual_seed(0))
    assert relabelling.obstacle(drawn) == ""
    assert "no states named nodes with pairs or edges" in relabelling.obstacle(replace(drawn, states={"x": drawn.states["nodes"]}))
    odd = replace(drawn, states={**drawn.states, "pairs": drawn.states["pairs"][..., :2]})
    assert "states['pairs'] is (6, 3, 2), expected (3,)" in relabelling.obstacle(odd)
    texts = replace(drawn, samples=("a",) * 6, size=drawn.size + 9)
    assert "size is no number of nodes" in relabelling.obstacle(texts)


def test_a_reversed_gradient_learns_nothing() -> None:
    report = check_words(twins.ReversedGradient(), skip=[], seconds=1.0)
    assert report.failed == ("derivative", "learning")
    assert row(report, "derivative").error > 1
    assert row(report, "learning").error > 0.1


class FloatFeatures(twins.Words):
    """Cannot be made float64, as its features are float32."""

    def features(self, *args: Any) -> Any:
        return super().features(*args).float()


class FloatLogits(twins.Words):
    """Computes in float32 whatever its weights are."""

    def logits(self, *args: Any) -> Any:
        return super().logits(*args).float()


class BackwardsInFloat(FloatLogits, twins.ReversedGradient):
    pass


def test_derivatives_are_measured_in_the_bits_there_are() -> None:
    kinds: list[tuple[twins.Words, str, float]] = [
        (twins.Words(), "passed", 1e-3),
        (twins.Words().bfloat16(), "passed", 1e-3),
        (FloatFeatures(), "passed", 5e-2),
        (FloatLogits(), "passed", 5e-2),
        (twins.ReversedGradient(), "failed", 5e-2),
        (BackwardsInFloat(), "failed", 5e-2),
    ]
    for policy, outcome, tolerance in kinds:
        found = row(check_words(policy, skip=[law for law in LAWS if law != "derivative"]), "derivative")
        assert (found.outcome, found.tolerance) == (outcome, tolerance), (type(policy), found)


def test_a_mask_that_is_not_obeyed_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def blind(sites: Sequence[Any]) -> Scores:
        return replace(score_sites(sites), logp=torch.cat([gather(s.log_probs, s.action.clamp_min(0)) for s in sites], -1))

    assert LAWS["mask"] is replay.masked_sites
    monkeypatch.setattr(replay, "score_sites", blind)
    assert "mask" in check_words(twins.Words()).failed


def test_another_gradient_than_reinforce_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learning, "grpo_loss", lambda *args: replace(found := grpo_loss(*args), loss=1.01 * found.loss))
    report = check_words(twins.Words())
    assert report.failed == ("reinforce",)
    assert row(report, "reinforce").error == pytest.approx(0.01, rel=1e-2)


# ---------------------------------------------------------------- measurements


def test_a_space_that_lacks_or_repeats_a_trajectory_is_no_space() -> None:
    policy = twins.Words()
    space = policy.space()
    short = check_words(policy, space=space.index(torch.arange(len(space) - 8)))
    assert {"total mass", "frequencies"} <= set(short.failed)
    assert "outside the space" in row(short, "frequencies").note
    doubled = check_words(policy, space=space.index(torch.tensor([*range(len(space)), 3])))
    assert {"total mass", "frequencies"} <= set(doubled.failed)
    assert "only 30 of them distinct" in row(doubled, "frequencies").note


def test_the_kits_p_values_are_those_of_scipy() -> None:
    report = check_words(twins.Words(), samples=3000)
    found = re.search(r"chi2 (\d+), (\d+) degrees of freedom, p ([\d.e-]+)", row(report, "frequencies").note)
    assert found is not None
    square, free, p = (float(x) for x in found.groups())
    assert chi2.sf(square + 0.5, free) - 0.01 <= p <= chi2.sf(square - 0.5, free) + 0.01
    assert row(report, "frequencies").error == pytest.approx(-math.log10(p), abs=0.01)


def test_p_values_of_a_healthy_policy_are_spread_out() -> None:
    """Both statistical laws: about half the errors are above log10 2, and none comes near the tolerance."""
    only = [law for law in LAWS if law not in ("frequencies", "calibration")]
    reports = [check_words(twins.Words(), samples=500, seed=seed, skip=only) for seed in range(12)]
    errors = [row(r, "frequencies").error for r in reports]
    assert 2 <= sum(e > math.log10(2) for e in errors) <= 10
    assert max(errors) < 3
    assert max(row(r, "calibration").error for r in reports) < 3


def test_small_cells_are_merged_until_each_expects_five() -> None:
    expected, counts = [0.5, 30.0, 1.0, 4.0, 6.0, 2.0], [1.0, 28.0, 0.0, 5.0, 7.0, 3.0]
    assert probability._merged(expected, counts) == [(7.5, 9.0), (6.0, 7.0), (30.0, 28.0)]
    assert probability._merged([1.0, 2.0], [0.0, 3.0]) == [(3.0, 3.0)]
    assert probability._merged([9.0, 8.0, 2.0], [1.0, 2.0, 3.0]) == [(10.0, 5.0), (9.0, 1.0)]


def test_too_few_samples_skip_the_statistics() -> None:
    assert {"frequencies", "calibration"} <= set(check_words(twins.Words(), samples=4).skipped)


def test_the_property_to_learn_varies_within_groups() -> None:
    words = ["xa", "xb", "xa", "xb", "y", "y", "y", "y"]  # x against y differs only between groups
    found = learning.text_property(words, 4)
    assert found is not None
    assert found(words) in ([1, 0, 1, 0, 0, 0, 0, 0], [0, 1, 0, 1, 0, 0, 0, 0])
    assert learning.text_property(["same"] * 8, 4) is None
    assert learning.text_property([object() for _ in range(8)], 4) is None


# ---------------------------------------------------------------- the report and the arguments


def test_a_report_is_a_plain_table_and_the_text_of_its_error() -> None:
    good = Row("units", 0.0, 0.0, "passed", "12 sites")
    bad = Row("steps", 0.25, 1e-4, "failed")
    skipped = Row("permutation", math.nan, math.nan, "skipped", "no permute given")
    report = Report((good, bad, skipped))
    assert str(report).splitlines() == [
        "law          error  tolerance  result   note",
        "units        0      0          passed   12 sites",
        "steps        0.25   0.0001     failed",
        "permutation  -      -          skipped  no permute given",
        "3 laws: 1 passed, 1 failed, 1 skipped",
    ]
    assert (report.passed, report.failed, report.skipped) == (False, ("steps",), ("permutation",))
    with pytest.raises(AssertionError, match=r"policy: breaks steps\nlaw  .*\n") as caught:
        report.raise_on_failure()
    assert str(report) in str(caught.value)
    Report((good, skipped)).raise_on_failure()


def test_a_law_that_raises_fails_with_what_was_said() -> None:
    found = row(check_words(twins.Raises()), "steps")
    assert found.error == math.inf
    assert found.note == "KeyError: 'nothing known of\\nsteps'"


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(ValueError, match="contexts: none given, expected at least one"):
        check_policy(twins.Words(), [])
    with pytest.raises(ValueError, match=r"skip: unit, expected some of shapes, contexts"):
        check_policy(twins.Words(), WORDS, skip=["unit"])
    methods = SimpleNamespace(sample=twins.Words().sample, sites=twins.Words().sites)
    with pytest.raises(TypeError, match="policy: SimpleNamespace is no"):
        check_policy(methods, WORDS)
    bare = twins.Words()
    bare.network = nn.Sequential()
    with pytest.raises(ValueError, match="policy: no parameters, expected at least one"):
        check_policy(bare, WORDS)
    left_out = row(check_words(twins.Words(), skip=["learning", "steps"]), "steps")
    assert left_out == replace(left_out, outcome="skipped", note="left out by the caller")


# ---------------------------------------------------------------- the example and the page


def test_the_example_is_short_passes_and_learns() -> None:
    path = ROOT / "examples/new_policy.py"
    assert len(path.read_text(encoding="utf-8").splitlines()) < 80
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, env=environment, check=True)
    assert f"{len(LAWS)} laws: {len(LAWS) - 2} passed, 0 failed, 2 skipped" in done.stdout
    found = re.search(r"reward (\S+) -> (\S+)\s", done.stdout.splitlines()[-1] + " ")
    assert found is not None
    before, after = map(float, found.groups())
    assert before < 0.65
    assert after > 0.9


def test_the_page_lists_every_law_in_order_and_its_code_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs/extending.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| `([^`]+)` \|", page.split("## 7. The laws")[1].split("\n## ")[0], re.M) == list(LAWS)
    for target in re.findall(r"\]\(([^)#:]+)\)", page):
        assert (ROOT / "docs" / target).exists(), target
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```", page, re.M | re.S)
    assert blocks
    names: dict[str, object] = {"__name__": "__main__"}
    for block in blocks:
        exec(compile(block, "docs/extending.md", "exec"), names)


# ---------------------------------------------------------------- arguments, and policies that are none


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"seconds": -1}, "seconds: -1, expected more than 0"),
        ({"samples": 0}, "samples: 0, expected at least 1"),
        ({"samples": 2.5}, "samples: 2.5, expected a whole number, at least 1"),
        ({"seed": "x"}, "seed: 'x', expected a whole number"),
        ({"learning": 3}, "learning: 3, expected a GRPOConfig"),
        ({"space": 3}, "space: 3, expected a Rollout, a function that makes one, or None"),
        ({"contexts": []}, "contexts: none given, expected at least one"),
        ({"contexts": [{"length": 3}]}, "contexts: {'length': 3}, expected Context(group, columns)"),
    ],
)
def test_bad_arguments_are_named_before_the_policy_is_touched(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match="^" + re.escape(message) + "$"):
        check_policy(object(), **{"contexts": WORDS} | given)  # type: ignore[arg-type]


class OneSites(twins.Words):
    def sites(self, rollout: Any, steps: Any = None) -> Any:
        return super().sites(rollout, steps)[0]


class TupleSites(twins.Words):
    def sites(self, rollout: Any, steps: Any = None) -> Any:
        return [tuple(super().sites(rollout, steps))]


class NoRollout(twins.Words):
    def sample(self, contexts: Any, *, generator: Any = None) -> Any:
        return None


class NoSites(twins.Words):
    sites = None  # type: ignore[assignment]


class NumberScores(twins.Words):
    def score(self, rollout: Any, steps: Any = None, reference: Any = None) -> Any:
        return rollout.logp


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (OneSites, "sites: returned a Sites, expected a list of Sites"),
        (TupleSites, "sites: returned a list with a tuple, expected a list of Sites"),
        (NoRollout, "sample: returned None, expected a Rollout"),
        (NoSites, "policy: NoSites has no method sites, expected one (or score in the place of sites)"),
        (NumberScores, "score: returned a Tensor, expected Scores"),
    ],
)
def test_a_method_that_returns_something_else_is_named(kind: type[twins.Words], message: str) -> None:
    with pytest.raises(ValueError, match="^" + re.escape(message) + "$"):
        check_words(kind(), space=None)


@pytest.mark.parametrize(
    ("score", "note"),
    [
        (lambda text: 5.0 * len(text), "reward: 15, expected numbers from 0 to 1"),
        (lambda text: 1.0, "reward: the same for all samples, expected one that varies"),
        (lambda text: None, "reward: no score of a sample is known"),
    ],
)
def test_learning_is_not_judged_by_a_reward_that_cannot_show_it(score: Callable[[str], float | None], note: str) -> None:
    only = [law for law in LAWS if law != "learning"]
    report = check_words(twins.ReversedGradient(), skip=only, reward=lambda samples, **columns: [score(s) for s in samples])
    assert row(report, "learning").outcome == "skipped"
    assert row(report, "learning").note == note
