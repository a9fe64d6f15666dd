"""Policies of the user's own module with every command, and graph policies with classes that are no molecules."""

from __future__ import annotations

import csv
import importlib
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import discrete_grpo
from discrete_grpo import GRPOConfig
from discrete_grpo.cli import main
from discrete_grpo.core.rollout import group_contexts
from discrete_grpo.diffusion.kernels import D3PM
from discrete_grpo.diffusion.noise import uniform
from discrete_grpo.diffusion.schedules import CosineSchedule
from discrete_grpo.domains import labelled_graphs
from discrete_grpo.policies.graph import GraphPolicy
from discrete_grpo.recipes.evaluate import evaluate
from discrete_grpo.recipes.families import SamplerOptions
from discrete_grpo.recipes.loading import load, load_policy
from discrete_grpo.recipes.sample import sample
from discrete_grpo.recipes.train import train
from discrete_grpo.rewards.graphs import connected
from discrete_grpo.rewards.molecules import validity
from discrete_grpo.runs.checkpoint import CheckpointError, load_metadata, save
from discrete_grpo.runs.recorder import read_metrics, read_samples
from tests.toys import share_of_class_two, tiny_network, tiny_policy, transformer_policy

MODULE = '''
from pathlib import Path

import torch
from torch import nn

from discrete_grpo import Rollout, Sites, score_sites
from discrete_grpo.core.categorical import (gather, sample)


class Letters(nn.Module):
    """Words of three letters, each drawn by itself; ``kept`` of a context holds first letters that are taken as they are."""

    def __init__(self, letters="abcd", temperature=1.0):
        super().__init__()
        self.letters, self.temperature = letters, temperature
        self.logits = nn.Parameter(0.1 * torch.randn(3, len(letters)))

    def init_args(self):
        return {"letters": self.letters, "temperature": self.temperature}

    def tables(self, steps):
        return (self.logits / self.temperature).log_softmax(-1)[steps]

    @torch.no_grad()
    def sample(self, contexts, *, generator=None):
        steps = torch.arange(3).expand(len(contexts), 3)
        drawn = sample(self.tables(steps).exp(), generator)
        units = torch.ones_like(steps)
        for row, context in enumerate(contexts):
            for k, letter in enumerate(context.columns.get("kept", "")):
                drawn[row, k], units[row, k] = self.letters.index(letter), 0
        logp = gather(self.tables(steps), drawn) * units
        group = torch.tensor([c.group for c in contexts])
        words = tuple("".join(self.letters[k] for k in row) for row in drawn.tolist())
        states = {"drawn": drawn, "units": units}
        return Rollout(states, group, logp, units, torch.full_like(group, 3), 3, words)

    def sites(self, rollout, steps=None):
        drawn = rollout.states["drawn"]
        steps = torch.arange(3).expand_as(drawn) if steps is None else steps
        mask = rollout.states["units"].gather(1, steps).bool()
        return [Sites(self.tables(steps)[:, :, None], drawn.gather(1, steps)[..., None], mask[..., None])]

    def restarts(self, rollout, rows, time):
        return [{"kept": rollout.samples[k][: round(3 * (1 - time))]} for k in rows.tolist()]


class Scored(nn.Module):
    """The same as a scorer."""

    def __init__(self):
        super().__init__()
        self.inner = Letters()

    def init_args(self):
        return {}

    def sample(self, contexts, *, generator=None):
        return self.inner.sample(contexts, generator=generator)

    def score(self, rollout, steps=None, reference=None):
        return score_sites(self.inner.sites(rollout, steps), None if reference is None else reference.inner.sites(rollout, steps))


class Texts(Letters):
    family = "text"


class Needy(Letters):
    def __init__(self, letters):
        super().__init__(letters)


class Bare(Letters):
    def sample(self, contexts):
        return super().sample(contexts)


class Mistaken(Letters):
    def __init__(self):
        super().__init__("abc" + 1)


def make():
    return Letters("xyz")


ready = Letters("uvw")


def a_first(samples, **columns):
    return [float(word.count("a")) for word in samples]


def flaky(samples, **columns):
    if Path("broken").exists():
        count = int(Path("broken").read_text())
        Path("broken").write_text(str(count - 1))
        if count == 0:
            raise OSError("away")
    return a_first(samples)


flaky.cached_as = None
'''
GRPO = ["--grpo.num_generations=4", "--grpo.generation_batch_size=16", "--grpo.save_steps=1", "--grpo.learning_rate=0.1"]


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working folder with the module ``my_words`` in it, which is not on ``sys.path``."""
    (tmp_path / "my_words.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    sys.modules.pop("my_words", None)


def rows_of(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text().splitlines()))


def run(*arguments: str) -> None:
    assert main([*arguments, "--debug"]) == 0


def trained(out: str, *more: str, policy: str = "my_words:Letters", steps: int = 3) -> None:
    run(
        "train", f"--policy={policy}", "--reward=my_words.flaky", f"--output_dir={out}", "--evaluation_samples=32",
        *GRPO, f"--grpo.max_steps={steps}", *more,
    )  # fmt: skip


def test_every_command_takes_a_policy_class_of_the_working_folder(mine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trained("run", steps=20)
    result = json.loads((mine / "run/evaluation.json").read_text())
    assert result["after"]["reward"] > result["before"]["reward"] + 0.5
    assert load_metadata(mine / "run/policy")["kind"] == "samples"
    run("sample", "my_words:Letters@run", "-n", "50", "--out", "words.csv")
    rows = rows_of(mine / "words.csv")
    assert list(rows[0]) == ["sample"]
    assert sum(row["sample"].count("a") for row in rows) / len(rows) > result["before"]["reward"]
    run("sample", "my_words:Letters", "-n", "5", "--out", "new.txt", "--temperature", "0.0001")
    assert len(set((mine / "new.txt").read_text().split())) == 1
    (mine / "run/report.html").unlink()
    run("report", "run")
    assert "<html" in (mine / "run/report.html").read_text()
    run(
        "search", "--policy=my_words:Letters@run", "--reward=my_words.a_first", "--output_dir=found", "--rounds=2", "--population=4"
    )
    assert set(read_samples(mine / "found/best.csv.gz")) == {"sample", "reward"}
    trained("further", policy="my_words:Letters@run", steps=1)
    further = json.loads((mine / "further/evaluation.json").read_text())
    assert further["before"]["reward"] == result["after"]["reward"]


def test_a_stopped_run_of_an_own_policy_resumes_to_the_same_bits(mine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trained("whole")
    (mine / "broken").write_text("2")  # the evaluation before and the first update succeed
    assert main(["train", "--policy=my_words:Letters", "--reward=my_words.flaky", "--output_dir=part", "--evaluation_samples=32",
                 *GRPO, "--grpo.max_steps=3"]) == 2  # fmt: skip
    assert "discrete-grpo resume part" in capsys.readouterr().err
    (mine / "broken").unlink()
    run("resume", "part")
    whole, part = (load_file(mine / name / "policy/model.safetensors") for name in ("whole", "part"))
    assert torch.equal(whole["logits"], part["logits"])
    assert [x["reward"] for x in read_metrics(mine / "whole")] == [x["reward"] for x in read_metrics(mine / "part")]


@pytest.mark.parametrize(("policy", "letters"), [("make", "xyz"), ("ready", "uvw"), ("Scored", "abcd"), ("Texts", "abcd")])
def test_functions_policies_and_scorers_can_be_named(mine: Path, policy: str, letters: str) -> None:
    trained("run", policy=f"my_words:{policy}", steps=2)
    run("sample", f"my_words:{policy}@run", "-n", "9", "--out", "words.txt")
    assert set((mine / "words.txt").read_text()) <= {*letters, "\n"}
    assert load_metadata(mine / "run/policy")["kind"] == ("text" if policy == "Texts" else "samples")
    assert len(read_metrics(mine / "run")) == 2


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        ("my_words:Letter", "my_words.py); did you mean 'Letters'?"),
        (
            "my_word:Letters",
            "policy: 'my_word:Letters' cannot be imported: No module named 'my_word'; it is neither installed nor in",
        ),
        ("my_word:Letters", "did you mean 'my_words'?"),
        ("my_words:Needy", "policy: 'my_words:Needy' cannot be called without arguments"),
        ("my_words:Path", "policy: PosixPath is no torch.nn.Module"),
        ("my_words:Letters@nowhere", "policy: 'nowhere' is no checkpoint folder"),
        ("my_words.Letters", "a class is named as my_words:Letters"),
        (
            "my_words:Bare",
            "Bare.sample(contexts) (got an unexpected keyword argument 'generator'), expected sample(contexts, *,",
        ),
    ],
)
def test_what_is_no_policy_is_one_line(mine: Path, policy: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sample", policy, "-n", "3", "--out", "x.txt"]) == 2
    assert said in capsys.readouterr().err
    assert main(["train", f"--policy={policy}", "--reward=qed", "--output_dir=run"]) == 2
    assert said in capsys.readouterr().err
    assert not (mine / "run").exists()


def test_a_checkpoint_of_another_class_than_the_one_named_is_refused(mine: Path) -> None:
    trained("run", steps=1)
    with pytest.raises(ValueError, match=r"policy: run.* holds a Letters, expected a Texts or one with it inside"):
        load("my_words:Texts@run")
    assert type(load("my_words:make@run").policy).__name__ == "Letters"  # a function that makes one


def test_a_policy_with_a_network_of_ones_own_is_named_by_that_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Naming the class trusts its module, whether it is that of the policy or of its network."""
    (tmp_path / "my_network.py").write_text(
        "from discrete_grpo.models.graph_transformer import GraphTransformer\n\n\nclass MyNetwork(GraphTransformer):\n    pass\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    policy = transformer_policy()
    policy.network = importlib.import_module("my_network").MyNetwork(policy.network.config)
    save(tmp_path / "kept", policy, metadata={"kind": "graphs"})
    assert main(["sample", "kept", "-n", "2", "--out", "x.txt"]) == 2
    assert "is outside the trusted packages" in capsys.readouterr().err
    assert main(["sample", "my_network:MyNetwork@kept", "-n", "2", "--out", "x.txt"]) == 0
    assert type(load_policy("my_network:MyNetwork@kept").network).__name__ == "MyNetwork"


def test_a_class_is_trusted_only_where_it_is_named(mine: Path) -> None:
    trained("run", steps=1)
    with pytest.raises(CheckpointError, match=r"my_words\.Letters' is outside the trusted packages"):
        load_policy("run")
    assert load_policy("my_words:Letters@run").letters == "abcd"
    for wrong in (5, None):
        with pytest.raises(ValueError, match=f"^policy: {wrong}, expected the name of a policy or its folder$"):
            load_policy(wrong)  # type: ignore[arg-type]


def test_a_type_error_inside_a_class_of_ones_own_is_raised_as_it_is(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(mine))
    with pytest.raises(TypeError, match="can only concatenate str"):
        load_policy("my_words:Mistaken")


def test_an_option_is_an_argument_of_the_class_or_refused(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(mine))
    first, changed = load_policy("my_words:Letters"), load_policy("my_words:Letters", SamplerOptions(temperature=0.5))
    assert changed.temperature == 0.5
    assert torch.equal(first.logits, changed.logits)
    with pytest.raises(ValueError, match="top_k: 3, expected none: Letters has no such setting"):
        load_policy("my_words:Letters", SamplerOptions(top_k=3))


def test_an_own_family_is_used_by_every_part_of_a_run(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from discrete_grpo.recipes.families import Family

    monkeypatch.syspath_prepend(str(mine))
    import my_words  # type: ignore[import-not-found]

    def length(samples: Any) -> dict[str, float]:
        return {"letters": float(sum(map(len, samples)))}

    family = Family("words", "word", length, length, table=lambda samples: {"first": [s[0] for s in samples]})
    monkeypatch.setattr(my_words.Letters, "family", family, raising=False)
    assert load("my_words:Letters").family is family
    trained("run", steps=1)
    assert read_metrics(mine / "run")[0]["letters"] == 48.0
    assert "first" in read_samples(mine / "run/evaluation_after.csv.gz")
    run("sample", "my_words:Letters@run", "-n", "5", "--out", "words.csv")
    assert (mine / "words.csv").read_text().startswith("word,first\n")
    run("report", "run")


# -- graphs with classes


def labelled_policy() -> GraphPolicy:
    """A policy with three node classes and four edge classes, without a decoder."""
    kernels = D3PM(uniform(3, CosineSchedule())), D3PM(uniform(4, CosineSchedule()))
    return GraphPolicy(tiny_network(3, 4), *kernels, (0.0, 0.0, 0.3, 0.3, 0.4), num_steps=4)


def heavy(samples: list[str | None], **columns: Any) -> list[float]:
    """The share of nodes of class 2."""
    graphs = [labelled_graphs.from_line(s) for s in samples if s is not None]
    return [sum(label == 2 for _, label in g.nodes(data="label")) / len(g) for g in graphs]


def test_an_exported_policy_of_labelled_graphs_is_sampled_and_trained(tmp_path: Path) -> None:
    folder = save(tmp_path / "exported", labelled_policy(), metadata={"kind": "graphs"})
    samples = sample(str(folder), 40, seed=1)
    bare = labelled_policy().sample(group_contexts(40, 1), generator=torch.Generator().manual_seed(1)).samples
    assert samples == [labelled_graphs.batch_to_lines(graph)[0] for graph in bare]
    assert len({label for s in samples for _, _, label in labelled_graphs.from_line(s).edges(data="label")}) == 3
    run("sample", str(folder), "-n", "40", "--seed=1", "--out", str(tmp_path / "s.csv"))
    rows = rows_of(tmp_path / "s.csv")
    assert [row["graph"] for row in rows] == samples
    assert rows[0]["nodes"] == str(len(labelled_graphs.from_line(samples[0])))
    found = evaluate(tmp_path / "s.csv")
    assert found["num_samples"] == 40
    assert sum(found[f"node_class_{c}"] for c in range(3)) == pytest.approx(1)
    grpo = GRPOConfig(max_steps=2, num_generations=4, generation_batch_size=16, learning_rate=1e-2)
    result = train(folder, heavy, output_dir=tmp_path / "run", grpo=grpo, evaluation_samples=20, num_steps=3)
    assert result["before"].keys() >= {"valid", "unique", "connected", "node_class_2", "edge_class_1"}
    assert load_metadata(tmp_path / "run/policy")["kind"] == "graphs"
    table = read_samples(tmp_path / "run/samples.csv.gz")
    assert all(labelled_graphs.from_line(s) for s in table["sample"])
    report = tmp_path / "run/report.html"
    drawn = report.read_text().count("<title>graph of")
    assert drawn > 0
    report.unlink()
    run("report", str(tmp_path / "run"))
    assert report.read_text().count("<title>graph of") == drawn


def test_rewards_of_plain_graphs_see_the_shape_of_labelled_ones(tmp_path: Path) -> None:
    samples = sample(str(save(tmp_path / "p", labelled_policy(), metadata={"kind": "graphs"})), 20)
    plain = [s.split()[0] for s in samples]
    assert connected(samples) == connected(plain)
    assert set(connected(samples)) == {0.0, 1.0}


# -- the functions of the package


def test_a_policy_object_is_trained_and_left_as_it_was(tmp_path: Path) -> None:
    policy = tiny_policy()
    before = {name: x.clone() for name, x in policy.state_dict().items()}
    grpo = GRPOConfig(max_steps=3, num_generations=4, generation_batch_size=16, save_steps=1, learning_rate=1e-2)
    result = train(policy, share_of_class_two, output_dir=tmp_path / "run", grpo=grpo, evaluation_samples=8)
    assert set(result) == {"before", "after"}
    assert all(torch.equal(x, policy.state_dict()[name]) for name, x in before.items())
    assert "(2," in "".join(read_samples(tmp_path / "run/samples.csv.gz")["sample"])  # its own decode
    whole = train(policy, share_of_class_two, output_dir=tmp_path / "two", grpo=replace(grpo, max_steps=2), evaluation_samples=8)
    resumed = replace(grpo, max_steps=3)
    again = train(policy, share_of_class_two, output_dir=tmp_path / "two", grpo=resumed, evaluation_samples=8, resume=True)
    assert whole["before"] == again["before"] == result["before"]
    assert again["after"]["reward"] == result["after"]["reward"]
    with pytest.raises(ValueError, match="holds results of another run"):
        train(policy, share_of_class_two, output_dir=tmp_path / "run", grpo=grpo)


def test_the_functions_of_the_package_work_together(tmp_path: Path) -> None:
    policy = discrete_grpo.load_policy("qm9-small", SamplerOptions(num_steps=4))
    samples = discrete_grpo.sample(policy, 6, seed=3)
    assert samples == discrete_grpo.sample("qm9-small", 6, seed=3, options=SamplerOptions(num_steps=4))
    assert discrete_grpo.evaluate(samples)["num_samples"] == 6
    (tmp_path / "s.smi").write_text("CCO\nCCO\n")
    assert discrete_grpo.evaluate(tmp_path / "s.smi", reference=str(tmp_path / "s.smi"))["novel"] == 0
    assert discrete_grpo.evaluate(["ab", None], kind="text")["valid"] == 0.5
    assert discrete_grpo.evaluate([(1, 2), (1, 2)], kind="samples")["unique"] == 0.5
    assert discrete_grpo.evaluate(["Bg", "Bw"], kind="graphs", shape="tree")["valid"] == 0.5
    grpo = discrete_grpo.GRPOConfig(max_steps=1, num_generations=4, generation_batch_size=8)
    told = discrete_grpo.train(
        "qm9-small", validity, output_dir=tmp_path / "run", grpo=grpo, evaluation_samples=0, num_steps=4, columns=[{"num_nodes": 4}]
    )
    assert told == {}
    assert discrete_grpo.load_policy(tmp_path / "run").num_steps == 4


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: evaluate(["C"], kind="sounds"), "kind: 'sounds', expected one of .*graphs, .*molecules, samples"),
        (lambda: evaluate(["C"], shape="tree"), "shape: 'tree', expected none with a file of molecules"),
        (lambda: sample("qm9-small", 0), "n: 0, expected at least 1"),
        (lambda: train("qm9-small", validity, output_dir="x", evaluation_samples=-1), "evaluation_samples: -1"),
    ],
)
def test_bad_arguments_are_one_line(call: Callable[[], Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        call()
