"""The conformance kit names the likely cause of a broken law, and names none that is not there."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from discrete_grpo.core.categorical import Sites
from discrete_grpo.core.rollout import Context, Rollout, group_contexts
from discrete_grpo.testing import LAWS, Report, check_policy
from tests import broken_policies as twins
from tests.broken_policies import Words
from tests.pretend_cuda import pretending

WORDS = group_contexts(3, 3)


def check(policy: Words, *laws: str, contexts: Sequence[Context] = WORDS) -> Report:
    """A report of some laws alone."""
    return check_policy(policy, contexts, trusted=["tests"], samples=100, skip=[law for law in LAWS if law not in laws])


def causes(report: Report) -> dict[str, str]:
    return {row.law: row.cause for row in report.rows if row.outcome == "failed"}


class EncodedWords(Words):
    """Words whose letters are read by torch's own encoder."""

    def __init__(self, length: int = 3, dropout: float = 0.0) -> None:
        super().__init__(length)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.embed = nn.Linear(5, 16)
            layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=dropout, batch_first=True)
            self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
            self.head = nn.Linear(16, 3)

    def logits(self, letters: Tensor, steps: Tensor, mood: Tensor) -> Tensor:
        found = self.features(letters, steps, mood)
        history, moods = found[..., :-2].unflatten(-1, (self.length, 3)), found[..., -2:]
        tokens = torch.cat([history, moods.unsqueeze(2).expand(-1, -1, self.length, -1)], -1)
        read = self.encoder(self.embed(tokens).flatten(0, 1)).mean(1).unflatten(0, steps.shape)
        logits: Tensor = self.head(read)
        return logits.to(torch.promote_types(logits.dtype, torch.float32))


def test_torchs_fast_path_is_named_and_its_remedy_works() -> None:
    report = check(EncodedWords(), "ratio eval", "ratio train", "stored log-probs")
    assert report.failed == ("ratio eval",), str(report)
    assert causes(report)["ratio eval"].startswith("torch's inference fast path: TransformerEncoder (encoder) takes another kernel")
    assert "likely cause: torch's inference fast path" in str(report)
    assert torch.backends.mha.get_fastpath_enabled()  # the experiment put it back
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        assert check(EncodedWords(), "ratio eval").failed == ()
    finally:
        torch.backends.mha.set_fastpath_enabled(True)


def test_dropout_of_an_encoder_in_train_mode_is_named_and_not_the_fast_path() -> None:
    found = causes(check(EncodedWords(dropout=0.1), "ratio train"))
    assert found["ratio train"].startswith("dropout is active in train mode (encoder.layers.0.self_attn, encoder.layers.0.dropout")
    assert "eval mode, so you may skip this law" in found["ratio train"]


class StaysInTrain(Words):
    """A dropout that no mode reaches."""

    def train(self, mode: bool = True) -> StaysInTrain:
        super().train(mode)
        self.network[1].train()
        return self


class FunctionalDropout(Words):
    """Forgets ``training=self.training``."""

    def logits(self, letters: Tensor, steps: Tensor, mood: Tensor) -> Tensor:
        return nn.functional.dropout(super().logits(letters, steps, mood), 0.2)


@pytest.mark.parametrize(
    ("policy", "where"),
    [
        (StaysInTrain(dropout=0.3), "(network.1)"),
        (FunctionalDropout(), "(torch.nn.functional.dropout, which drops unless training=False is given)"),
    ],
)
def test_dropout_left_active_in_eval_mode_is_named(policy: Words, where: str) -> None:
    found = causes(check(policy, "ratio eval", "stored log-probs", "batch size", "reinforce"))
    assert set(found) == {"ratio eval", "stored log-probs", "batch size", "reinforce"}
    assert set(found.values()) == {f"dropout is active in eval mode {where}"}


class BatchNormWords(Words):
    """Normalises over the batch, with or without stored statistics."""

    def __init__(self, stored: bool = False) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3, track_running_stats=stored)

    def logits(self, letters: Tensor, steps: Tensor, mood: Tensor) -> Tensor:
        found = super().logits(letters, steps, mood)
        normed: Tensor = self.norm(found.flatten(0, 1).to(self.norm.weight.dtype))
        return normed.unflatten(0, found.shape[:2]).to(found.dtype)


def test_statistics_of_the_batch_are_named() -> None:
    found = causes(check(BatchNormWords(), "batch size", "padding", "stored log-probs", "ratio eval"))
    assert set(found) == {"batch size", "padding", "stored log-probs"}
    assert set(found.values()) == {
        "batch normalisation takes the statistics of the batch (norm): a row's log-probs depend on the other rows"
    }
    assert check(BatchNormWords(stored=True), "batch size", "padding", "stored log-probs", "ratio eval").failed == ()


class PythonRandom(Words):
    def logits(self, letters: Tensor, steps: Tensor, mood: Tensor) -> Tensor:
        return super().logits(letters, steps, mood) * random.uniform(0.5, 1)


class NumpyRandom(Words):
    def sites(self, rollout: Rollout, steps: Tensor | None = None) -> Sequence[Sites]:
        mood = torch.from_numpy(np.random.randint(2, size=len(rollout)))  # noqa: NPY002  (the mistake itself)
        return super().sites(replace(rollout, states={**rollout.states, "mood": mood}), steps)


@pytest.mark.parametrize(
    ("kind", "source"),
    [
        (twins.ResampledLatent, "torch's global state (aten.randint_like)"),
        (PythonRandom, "the module random"),
        (NumpyRandom, "the module numpy.random"),
    ],
)
def test_random_numbers_of_scoring_are_named(kind: type[Words], source: str) -> None:
    found = causes(check(kind(), "ratio eval"))
    assert found == {"ratio eval": f"scoring draws random numbers from {source}: draw them in sample and store them in the states"}


@pytest.mark.parametrize("law", ["generator", "global random state"])
def test_random_numbers_beside_the_generator_are_named(law: str) -> None:
    assert causes(check(twins.GlobalRandom(), law)) == {
        law: "sample draws from torch's global state (aten.randint), torch's global state (aten.rand) and not from its generator"
    }


def test_a_seed_that_is_set_has_no_cause_that_was_not_seen() -> None:
    assert causes(check(twins.ResetsGlobalRandom(), "global random state")) == {"global random state": ""}


class RoundedTables(Words):
    """Normalises in 16 bits, and casts what comes of it."""

    bits = torch.bfloat16

    def tables(self, letters: Tensor, steps: Tensor, mood: Tensor) -> Tensor:
        return self.logits(letters, steps, mood).to(self.bits).log_softmax(-1).float()


class RoundedToHalf(RoundedTables):
    bits = torch.float16


def test_tables_of_sixteen_bits_are_named() -> None:
    advice = "cast the logits to float32 before they are normalised"
    assert causes(check(twins.HalfTables(), "ratio bf16")) == {"ratio bf16": f"log-probabilities are torch.bfloat16: {advice}"}
    for kind in (RoundedTables, RoundedToHalf):
        said = f"log-probabilities are torch.float32 but have the digits of {kind.bits}: {advice}"
        assert causes(check(kind(), "probabilities")) == {"probabilities": said}


@pytest.mark.parametrize(
    ("kind", "law"),
    [
        (twins.StepsDescending, "steps"),
        (twins.SeesItsBatch, "batch size"),
        (twins.StoresMeans, "stored log-probs"),
        (twins.RawLogits, "calibration"),
    ],
)
def test_other_mistakes_are_given_no_cause(kind: type[Words], law: str) -> None:
    report = check_policy(kind(), WORDS, trusted=["tests"], samples=800, skip=[x for x in LAWS if x != law])
    assert causes(report) == {law: ""}


def test_a_dropout_that_is_there_but_not_at_fault_is_not_named() -> None:
    class Both(twins.StoresMeans):
        pass

    both: Any = Both(dropout=0.3)
    assert causes(check(both, "stored log-probs")) == {"stored log-probs": ""}


# -- tables and masks


def test_logits_that_were_not_normalised_are_named() -> None:
    found = causes(check(twins.Unnormalised(), "probabilities", "calibration"))
    assert found["probabilities"].startswith("probabilities of a table sum to ")
    assert found["probabilities"].endswith("log_probs are logits, on which log_softmax(-1) is to be called")


def test_a_mask_of_ones_is_named() -> None:
    found = causes(check(twins.UnmaskedPadding(), "units", "padding"))
    assert set(found) == {"units", "padding"}
    assert all(cause.startswith("mask is true at every site") for cause in found.values())
    assert causes(check(twins.CountsStops(), "units")).get("units", "") == ""  # a mask with other mistakes


class OwnGenerator(Words):
    def sample(self, contexts: Sequence[Context], *, generator: torch.Generator | None = None) -> Rollout:
        self.drawn = getattr(self, "drawn", 0) + 1
        return super().sample(contexts, generator=torch.Generator().manual_seed(self.drawn))


def test_a_generator_that_is_not_used_is_named() -> None:
    told = "sample draws no number from its generator, whose state is the same after the call"
    assert causes(check(OwnGenerator(), "generator"))["generator"] == told


class AttentiveWords(OwnGenerator):
    """Reads its letters by torch's attention, which can drop at random, but does not."""

    def features(self, letters: Tensor, steps: Tensor, mood: Tensor) -> Tensor:
        found = super().features(letters, steps, mood)
        rows = found.unflatten(-1, (1, -1))
        return found + nn.functional.scaled_dot_product_attention(rows, rows, rows).flatten(-2)


def test_attention_without_dropout_is_no_source_of_random_numbers() -> None:
    assert causes(check(AttentiveWords(), "generator"))["generator"].startswith("sample draws no number from its generator")


class ListedWords(Words):
    """One of its layers is in a list."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.layers = [nn.Linear(3, 3)]

    def logits(self, letters: Tensor, steps: Tensor, mood: Tensor) -> Tensor:
        found: Tensor = self.layers[0](super().logits(letters, steps, mood))
        return found


class ShiftedWords(Words):
    """Shifts its logits by a tensor that is no buffer."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.shift = torch.randn(3)

    def logits(self, letters: Tensor, steps: Tensor, mood: Tensor) -> Tensor:
        return super().logits(letters, steps, mood) + self.shift


@pytest.mark.parametrize(
    ("kind", "cause"),
    [
        (ListedWords, "torch does not find the weights in layers, so that they are neither trained nor stored: use nn.ModuleList"),
        (ShiftedWords, "the tensor shift is no part of a checkpoint, and the loaded policy has another one: use register_buffer"),
        (twins.ForgetsTemperature, ""),
    ],
)
def test_what_a_checkpoint_leaves_out_is_named(kind: type[Words], cause: str) -> None:
    policy = kind(temperature=0.8) if kind is twins.ForgetsTemperature else kind()
    assert causes(check(policy, "checkpoint")) == {"checkpoint": cause}


class RaisesInSample(Words):
    def sample(self, contexts: Sequence[Context], *, generator: torch.Generator | None = None) -> Rollout:
        raise KeyError("no\nsuch mood")


def test_a_sample_that_raises_is_named() -> None:
    where = r"\(test_causes\.py, line \d+\); no context has such a column, which conditions give \(columns\)"
    with pytest.raises(ValueError, match=r"^sample: raised KeyError: 'no\\nsuch mood' " + where + "$"):
        check(RaisesInSample())


class ListsAndGradients(Words):
    """Gives a list of samples, and log-probs with a gradient."""

    def sample(self, contexts: Sequence[Context], *, generator: torch.Generator | None = None) -> Rollout:
        drawn = super().sample(contexts, generator=generator)
        columns = {name: list(values) for name, values in drawn.columns.items()}
        logp = drawn.logp * torch.ones((), requires_grad=True).abs()
        return replace(drawn, samples=list(drawn.samples), columns=columns, logp=logp)  # type: ignore[arg-type]


def test_lists_are_as_good_as_tuples_and_a_gradient_breaks_its_own_law_alone() -> None:
    contexts = group_contexts(3, 3, [{"tag": k} for k in range(3)])
    assert check(ListsAndGradients(), "contexts", "unchanged", "detached", contexts=contexts).failed == ("detached",)


def test_a_correct_policy_passes_on_another_device() -> None:
    with pretending():
        contexts = [Context(0, {"mood": 0}), Context(1, {"mood": 1}), Context(2)]
        report = check(Words().to("cuda"), "contexts", "padding", "batch size", "steps", contexts=contexts)
        assert not report.failed, str(report)
        assert check(OnTheHost().to("cuda"), "contexts").rows[1].note == "not so: logp on the policy's device"


class OnTheHost(Words):
    """Gives its log-probs on the CPU."""

    def sample(self, contexts: Sequence[Context], *, generator: torch.Generator | None = None) -> Rollout:
        drawn = super().sample(contexts, generator=generator)
        return replace(drawn, logp=drawn.logp.cpu())
