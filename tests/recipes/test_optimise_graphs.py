"""``optimise`` of graph diffusion policies: the method of the benchmark, what a run leaves, and how it goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from discrete_grpo.benchmarking.methods import METHODS
from discrete_grpo.core.scoring import RewardError
from discrete_grpo.domains.smiles import parse
from discrete_grpo.policies.graph import GraphPolicy
from discrete_grpo.policies.node_count import RunningSizes, SizedPolicy
from discrete_grpo.recipes.families import SamplerOptions
from discrete_grpo.recipes.grpo_memory import GRAPH_SETTINGS
from discrete_grpo.recipes.loading import load_policy, with_sampler
from discrete_grpo.recipes.memory_methods import GRAPHS, TOKENS, method_for, methods_with
from discrete_grpo.recipes.optimise import Optimised, OptimiseRecipe, optimise
from discrete_grpo.rewards.ledger import Ledger, molecule_key
from discrete_grpo.runs.checkpoint import load_metadata
from discrete_grpo.runs.recorder import read_metrics, read_samples
from tests.benchmarking.parts import OXYGENS
from tests.recipes.optimise_parts import files, oxygens, run
from tests.recipes.test_optimise_resumed import Failing

SMALL: dict[str, Any] = {
    "num_steps": 3, "draws": 14, "children": 4, "take": 10, "unscreened": 2, "take_children": 6, "passes": 2, "batch_size": 6,
    "memory_size": 20,
}  # fmt: skip


def graphs(folder: Path, reward: Any = oxygens, budget: int = 30, policy: Any = "qm9-small", **options: Any) -> Optimised:
    given: dict[str, Any] = {"seed": 3, "save_rounds": 2, "settings": SMALL} | options
    return optimise(policy, reward, output_dir=folder, max_oracle_calls=budget, **given)


def test_it_is_the_method_of_the_benchmark(tmp_path: Path) -> None:
    found = graphs(tmp_path / "run", OXYGENS)
    ledger = Ledger(key=molecule_key, max_oracle_calls=30)
    METHODS["grpo-graph-memory"].run(OXYGENS, load_policy("qm9-small"), ledger, 3, **GRAPH_SETTINGS | SMALL)
    rows = read_samples(tmp_path / "run" / "samples.csv.gz")
    assert tuple(rows["sample"]) == ledger.history().keys
    assert tuple(rows["source"]) == ledger.history().sources
    assert found.sources == ledger.sources()
    assert {"policy", "regeneration"} <= set(found.sources) <= {"policy", "graph-ga", "regeneration"}


def test_what_is_left_is_the_graph_policy(tmp_path: Path) -> None:
    graphs(tmp_path)
    first, last = (load_policy(tmp_path / name) for name in ("reference", "policy"))
    assert load_metadata(tmp_path / "policy")["kind"] == "molecules"
    given = load_policy("qm9-small")
    for policy in (first, last):
        assert type(policy) is GraphPolicy
        assert policy.num_steps == 3
    pairs = list(zip(given.parameters(), first.parameters(), last.parameters(), strict=True))
    assert all(torch.equal(a, b) for a, b, _ in pairs)
    assert not all(torch.equal(a, b) for a, _, b in pairs)
    assert "Best so far" in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize("after", [5, 24])  # in the first round, and behind a checkpoint
@pytest.mark.slow
def test_a_run_whose_reward_fails_goes_on_to_the_same_bits(after: int, tmp_path: Path) -> None:
    graphs(tmp_path / "whole", Failing(10**9))
    reward = Failing(after)
    with pytest.raises(RewardError):
        graphs(tmp_path / "run", reward)
    graphs(tmp_path / "run", reward, resume=True)
    assert files(tmp_path / "run") == files(tmp_path / "whole")


def test_a_policy_object_is_left_as_it_was_and_a_choice_of_sizes_is_left_out(tmp_path: Path) -> None:
    inner = load_policy("qm9-small")
    sized = SizedPolicy(inner, RunningSizes(inner.node_counts)).eval()
    before = [p.clone() for p in sized.parameters()]
    assert method_for(sized) is GRAPHS
    graphs(tmp_path / "run", policy=sized, budget=12)
    assert all(torch.equal(a, b) for a, b in zip(before, sized.parameters(), strict=True))
    drawn = GRAPHS.drawing(sized, num_steps=4, elbo_draws=3)
    assert (type(drawn.policy), drawn.policy.num_steps, drawn.draws) == (GraphPolicy, 4, 3)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"num_steps": 0}, "settings: num_steps: 0, expected 1 to 10000"),
        ({"num_steps": 1e9}, "settings: num_steps: 1000000000, expected 1 to 10000"),
        ({"elbo_draws": 0}, "settings: elbo_draws: 0, expected at least 1"),
        ({"refine_time": 1.0}, "settings: refine_time: 1.0, expected"),
        ({"size_share": -0.5}, "settings: size_share: -0.5, expected 0 to 1"),
        ({"num_steps": 5, "kappa": -1.0}, "settings: kappa: -1"),
        ({"num_steps": 5, "memory_size": 0}, "settings: memory_size: 0, expected at least 1"),
        ({"num_steps": 5, "objective": {"epsilon": 2.0}}, "settings: objective: epsilon: 2"),
        ({"num_steps": 5, "objective": {"temperature": 0.1}}, "settings: objective: 'temperature' is unknown; known: epsilon"),
        ({"num_step": 5}, "settings: 'num_step' is unknown; did you mean 'num_steps'"),
        (
            {"num_steps": 5, "temperature": 0.5},
            r"settings: num_steps, temperature, expected settings of one kind of policies "
            r"\(SMILES policies have no num_steps; graph policies have no temperature\)$",
        ),
    ],
)
def test_settings_are_refused(given: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=f"^{told}"):
        OptimiseRecipe(policy="qm9-small", settings=given)


def test_settings_of_another_kind_of_policies_are_refused(tmp_path: Path) -> None:
    assert methods_with({"num_steps": 5}) == [GRAPHS]
    assert methods_with({"temperature": 0.5}) == [TOKENS]
    assert methods_with({"draws": 5}) == [TOKENS, GRAPHS]
    with pytest.raises(
        ValueError, match=r"^settings: 'temperature' is a setting of SMILES policies, expected one of graph .*num_st"
    ):
        graphs(tmp_path / "a", settings={"temperature": 0.5})
    with pytest.raises(ValueError, match=r"^settings: 'num_steps' is a setting of graph policies, expected one of SMILES .*, temp"):
        run(tmp_path / "b", settings={"num_steps": 5})
    assert not any(tmp_path.iterdir())


def test_settings_fit_if_they_fit_one_kind_of_policies() -> None:
    assert OptimiseRecipe(policy="qm9-small", settings={"take": 8, "unscreened": 4}).settings == {"take": 8, "unscreened": 4}
    with pytest.raises(ValueError, match=r"^settings: unscreened: 10, expected at most 8 \(take\)$"):
        OptimiseRecipe(policy="qm9-small", settings={"take": 8})


@pytest.mark.slow
def test_a_policy_learns_on_where_the_best_molecules_are_beyond_its_reach(tmp_path: Path) -> None:
    """The genetic algorithm joins molecules to ones of more than 9 atoms, which fill the memory and the policy cannot draw."""
    graphs(tmp_path / "run", heavy, budget=100, settings={**SMALL, "children": 16, "draws": 24})
    policy, samples = load_policy("qm9-small"), read_samples(tmp_path / "run" / "samples.csv.gz")
    best = sorted(samples["sample"], key=lambda text: -heavy([text])[0])[: SMALL["memory_size"]]
    learned = [record["learned"] for record in read_metrics(tmp_path / "run")]
    assert sum(policy.can_draw(text) for text in best) < len(best) - 3
    assert learned[3:-1] == [SMALL["passes"] * SMALL["batch_size"]] * len(learned[3:-1])
    assert len(learned) > 5


def heavy(samples: list[str], **_: Any) -> list[float]:
    return [float(parsed.GetNumHeavyAtoms()) if (parsed := parse(text)) is not None else 0.0 for text in samples]


def test_a_policy_that_reads_no_smiles_strings_is_refused(tmp_path: Path) -> None:
    given = load_policy("qm9-small")
    policy = GraphPolicy(**given.init_args(), decode=lambda batch: given.decode(batch))
    told = r"^policy: it has no encode and so learns from no SMILES string, expected"
    with pytest.raises(ValueError, match=told):
        graphs(tmp_path / "run", policy=policy)
    assert not any(tmp_path.iterdir())


def test_a_policy_with_a_decoder_of_the_users_is_taken(tmp_path: Path) -> None:
    given = load_policy("qm9-small")
    policy = GraphPolicy(**given.init_args(), decode=lambda batch: given.decode(batch), encode=lambda texts: given.encode(texts))
    graphs(tmp_path / "own", policy=policy, budget=20)
    graphs(tmp_path / "known", policy=given, budget=20)
    own, known = (read_samples(tmp_path / name / "samples.csv.gz") for name in ("own", "known"))
    assert own == known


def test_steps_that_share_a_table_and_a_trained_choice_of_sizes_are_left_out(tmp_path: Path) -> None:
    inner = with_sampler(load_policy("qm9-small"), SamplerOptions(shared_steps=4))
    graphs(tmp_path / "run", policy=SizedPolicy(inner, RunningSizes(inner.node_counts)).eval(), budget=12)
    found = load_policy(tmp_path / "run" / "policy")
    assert (type(found), found.shared_steps, found.num_steps) == (GraphPolicy, 0, 3)
