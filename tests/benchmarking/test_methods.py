"""Every method of the benchmark on a toy task with a small budget: what it spends, what it names, and that its seed decides."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rdkit import Chem
from torch import nn

from discrete_grpo.benchmarking.counted import CountedTask
from discrete_grpo.benchmarking.methods import METHODS
from discrete_grpo.benchmarking.methods.genetic import genetic
from discrete_grpo.benchmarking.methods.trained import in_rounds
from discrete_grpo.core.scoring import BudgetExhausted
from discrete_grpo.domains.tokenizer import Tokenizer
from discrete_grpo.models.recurrent import Recurrent, RecurrentConfig
from discrete_grpo.policies.decoded import DecodedPolicy
from discrete_grpo.policies.node_count import RunningSizes, SizedPolicy
from discrete_grpo.policies.tokens import TokenPolicy
from discrete_grpo.policies.truncation import Truncation
from discrete_grpo.recipes.families import SamplerOptions
from discrete_grpo.recipes.loading import load_policy
from discrete_grpo.rewards.ledger import History, Ledger, molecule_key
from discrete_grpo.training.objectives import Likelihood
from discrete_grpo.training.rounds import Rounds
from tests.benchmarking.parts import OXYGENS
from tests.toys import tiny_policy

ATOMS = Tokenizer(("C", "N", "O"))
SOURCES = {"policy", "graph-ga", "smiles-ga", "splicing", "screen", "regeneration"}
FEW: dict[str, Any] = {"num_steps": 4, "generation_batch_size": 16, "per_device_batch_size": 16, "timestep_chunk": None}
FEW_ROUNDS: dict[str, Any] = {
    "num_steps": 4,
    "draws": 12,
    "children": 4,
    "take": 12,
    "take_children": 8,
    "passes": 1,
    "batch_size": 8,
}
SMALLER = {
    "grpo-graph": FEW,
    "grpo-graph-refine": FEW | {"num_generations": 8},
    "grpo-graph-memory": FEW_ROUNDS,
    "grpo-graph-memory-no-grpo": FEW_ROUNDS | {"passes": 0},
    "random-reward-graph": FEW_ROUNDS,
}
"""Settings that the tests change for time."""
named = pytest.mark.parametrize("name", sorted(METHODS))


def chains() -> TokenPolicy:
    """A small policy of chains of 6 to 8 atoms, every one of which is a molecule."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = Recurrent(RecurrentConfig(len(ATOMS), "gru", layers=1, width=16, embedding=8))
        for parameter in net.parameters():
            nn.init.normal_(parameter, std=0.2)
    return TokenPolicy(net, ATOMS, max_length=8, min_length=6).eval()


def policy_for(name: str) -> Any:
    method = METHODS[name]
    if not method.needs_policy:
        return None
    if method.policy_kinds and "tokens" not in method.policy_kinds:
        return load_policy("qm9-small", SamplerOptions(num_steps=4))
    return chains()


def spent(name: str, seed: int, budget: int) -> tuple[History, Ledger]:
    ledger = Ledger(key=molecule_key, max_oracle_calls=budget)
    task: Any = CountedTask(OXYGENS, ledger)
    settings = {**METHODS[name].settings, **SMALLER.get(name, {})}
    with contextlib.suppress(BudgetExhausted):
        METHODS[name].run(task, policy_for(name), ledger, seed, **settings)
    return ledger.history(), ledger


@named
def test_it_spends_its_budget_names_its_sources_and_its_seed_decides(name: str) -> None:
    budget = 20 if name in SMALLER else METHODS[name].least_budget + 30
    (first, ledger), (again, _), (other, _) = (spent(name, *asked) for asked in ((3, budget), (3, budget), (4, 20)))
    assert ledger.calls == len(first.keys) == len(set(first.keys)) == budget
    assert bool(first.scores.isfinite().all())
    assert first.keys == again.keys
    assert first.sources == again.sources
    assert set(first.keys[:20]) != set(other.keys)
    assert set(first.sources) <= SOURCES


@named
def test_it_is_described_and_its_settings_are_plain(name: str) -> None:
    method = METHODS[name]
    settings = dict(method.settings)
    assert json.loads(json.dumps(settings)) == settings
    assert method.name == name
    assert method.about


ROUNDS = [name for name in sorted(METHODS) if {"passes", "draws"} <= set(METHODS[name].settings)]


@pytest.mark.parametrize("name", ROUNDS)
def test_what_it_is_set_to_reaches_the_rounds(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    monkeypatch.setattr(Rounds, "run", lambda self: made.append(self))
    settings, policy = METHODS[name].settings, policy_for(name)
    METHODS[name](OXYGENS, policy, Ledger(key=molecule_key), 0)
    (loop,) = made
    for key, value in settings.items():
        if hasattr(loop.config, key):
            assert getattr(loop.config, key) == value
        if key in ("beta", "sigma", "kl_coef"):
            assert getattr(loop.objective, key) == value
    assert loop.memory.size == settings.get("memory_size", 1024)
    proposers = ["graph-ga"] if "mutation_rate" in settings else []
    if METHODS[name].policy_kinds == ("graph",):
        own = loop.policy
        assert (own.draws, own.policy.num_steps) == (settings["elbo_draws"], settings["num_steps"])
        assert (loop.contexts.share, loop.contexts.policy) == (settings["size_share"], own)
        assert (loop.proposers[1].time, loop.proposers[1].policy) == (settings["refine_time"], own)
        assert loop.objective.temperature == 0
        proposers.append("regeneration")
    else:
        assert policy.truncation.temperature == settings.get("temperature", 1.0)
    assert loop.generator.initial_seed() == 0
    assert [proposer.name for proposer in loop.proposers] == proposers


def test_random_scores_never_reach_the_optimum() -> None:
    task = replace(OXYGENS, optimum=0.3)  # which ten of some forty random numbers are above
    ledger = Ledger(key=molecule_key, max_oracle_calls=230)
    METHODS["random-reward"](task, chains(), ledger, 0)
    assert ledger.calls == 230


def test_the_temperature_of_a_method_is_set_inside_a_wrapper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Rounds, "run", lambda self: None)
    inner = chains()
    inner.truncation = Truncation(temperature=0.5)
    wrapped = DecodedPolicy(inner, list)
    in_rounds(OXYGENS, wrapped, Ledger(key=molecule_key), 0, Likelihood(), temperature=1.0, passes=0)
    assert inner.truncation.temperature == 1.0


def test_augmented_memory_learns_other_spellings_of_the_same_molecule() -> None:
    from discrete_grpo.benchmarking.methods.augmented_memory import spelled_anew

    generator = torch.Generator().manual_seed(0)
    spelled = {spelled_anew("CCOC(=O)c1ccccc1", generator) for _ in range(30)}
    assert len(spelled) > 5
    assert {molecule_key(text) for text in spelled} == {molecule_key("CCOC(=O)c1ccccc1")}
    assert spelled_anew("no molecule", generator) == "no molecule"


def test_rounds_of_a_used_up_space_end() -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = Recurrent(RecurrentConfig(len(ATOMS), "gru", layers=1, width=8, embedding=4))
    policy, ledger = TokenPolicy(net, ATOMS, max_length=2).eval(), Ledger(key=molecule_key, max_oracle_calls=500)
    METHODS["dap"](OXYGENS, policy, ledger, 0)
    assert ledger.calls == 3 + 6  # C, N, O and the six pairs without order


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The policies that trainers are given, which do not train them."""
    trained: list[Any] = []

    class Trainer:
        def __init__(self, policy: Any, *_: Any, **__: Any) -> None:
            trained.append(policy)

        def train(self) -> None:
            pass

    monkeypatch.setattr("discrete_grpo.training.trainer.GRPOTrainer", Trainer)
    return trained


@pytest.mark.parametrize("method", ["grpo", "grpo-graph", "grpo-graph-refine", "grpo-replay", "reinforce", "ppo-clip"])
def test_node_counts_of_graphs_are_learned(method: str, trained: list[Any]) -> None:
    """All samples of an update are one group, which would share one node count."""
    graphs, texts = tiny_policy(), chains()
    settings = {name: value for name, value in METHODS[method].settings.items() if name != "num_steps"}
    for policy in (graphs, texts):
        METHODS[method].run(OXYGENS, policy, Ledger(), 0, **settings)
    assert isinstance(trained[0], SizedPolicy)
    assert isinstance(trained[0].head, RunningSizes)
    assert trained[0].policy is graphs
    assert trained[1] is texts


def test_steps_of_graph_policies_are_those_of_the_method(trained: list[Any]) -> None:
    policy, method = tiny_policy(num_steps=7), METHODS["grpo-graph"]
    method.run(OXYGENS, policy, Ledger(), 0, **method.settings)
    assert trained[0].policy.num_steps == method.settings["num_steps"] == 25
    assert policy.num_steps == 7
    assert all(a is b for a, b in zip(trained[0].parameters(), policy.parameters(), strict=True))  # trained in place


def test_the_spelling_of_a_file_does_not_reach_the_score(tmp_path: Path) -> None:
    seen: list[str] = []

    def score(mol: Any) -> float:
        seen.append(Chem.MolToSmiles(mol, canonical=False))
        return 0.5

    (tmp_path / "a.smi").write_text("OCC\nN(C)CC\nC((\n")
    ledger = Ledger(key=molecule_key, max_oracle_calls=5)
    METHODS["random"].run(replace(OXYGENS, score=score), None, ledger, 0, file=str(tmp_path / "a.smi"))
    assert sorted(seen) == ["CCNC", "CCO"]
    assert ledger.calls == 2


def test_the_patience_of_a_genetic_algorithm_counts_generations_in_a_row() -> None:
    class Policy(nn.Linear):
        def sample(self, contexts: Any, generator: Any) -> Any:
            return SimpleNamespace(samples=["C"] * len(contexts))

    class Proposer:
        name = "made"
        made = iter([["CC"], ["CC"], ["CCC"], ["CC"], ["CCCC"], ["C"], ["C"], ["CCCCC"]])

        def propose(self, memory: Any, count: int, generator: Any) -> list[str]:
            return next(self.made)

    class Length:
        name, kind = "length", "molecules"

        def __call__(self, samples: Sequence[str], **columns: Any) -> list[float]:
            return [float(len(sample)) for sample in samples]

    ledger = Ledger(key=molecule_key)
    genetic(Length(), Policy(1, 1), ledger, 0, Proposer(), 3, 1, patience=2)
    assert ledger.history().keys == ("C", "CC", "CCC", "CCCC")
