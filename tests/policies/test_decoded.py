"""Decoded policies and their decoders: samples change, log-probs and gradients do not, and nothing of a decoder is trained."""

from __future__ import annotations

import copy
import itertools
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from discrete_grpo.core.categorical import score_sites
from discrete_grpo.core.loss import grpo_loss
from discrete_grpo.core.rollout import Context, Policy, Rollout, group_contexts, is_replayable
from discrete_grpo.domains.graph6 import from_graph6
from discrete_grpo.domains.graph_sequences import PATTERN, GraphSequences
from discrete_grpo.domains.images import Image
from discrete_grpo.domains.tokenizer import CHARACTERS, NUM_SPECIAL, Tokenizer
from discrete_grpo.models.encoder import Encoder, EncoderConfig
from discrete_grpo.models.gpt import GPT, GPTConfig
from discrete_grpo.models.vq import CodeDecoder, VQConfig
from discrete_grpo.policies.decoded import DecodedPolicy
from discrete_grpo.policies.decoders import CODES, SELFIES, SelfiesDecoder, VQDecoder, code_text
from discrete_grpo.policies.masked_text import MaskedTextPolicy
from discrete_grpo.policies.tokens import TokenPolicy
from discrete_grpo.runs.checkpoint import read_policy, save
from discrete_grpo.testing import check_policy
from discrete_grpo.training.config import GRPOConfig
from discrete_grpo.training.trainer import GRPOTrainer

CONFIG = VQConfig(size=4, halvings=1, codes=3, code_width=2, width=4)  # a grid of 2 by 2 codes


def token_policy(tokens: Sequence[str], pattern: str, length: int, *, least: int = 0, prompt: str | None = None) -> TokenPolicy:
    """A token policy of a thousand weights, built without touching the global random state."""
    tokenizer = Tokenizer(tuple(tokens), pattern)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = GPT(GPTConfig(len(tokenizer), max(2, length), layers=1, heads=2, width=16, expansion=2))
    return TokenPolicy(network, tokenizer, max_length=length, min_length=least, prompt=prompt)


def code_decoder(length: int = 4) -> VQDecoder:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return VQDecoder(CodeDecoder(CONFIG), length, CONFIG.codes)


def image_codes() -> DecodedPolicy:
    return DecodedPolicy(token_policy(["<0>", "<1>", "<2>"], CODES, 4, least=4), code_decoder())


def draw(policy: Policy, count: int = 6, seed: int = 0) -> Rollout:
    return policy.sample(group_contexts(count, 1), generator=torch.Generator().manual_seed(seed))


def brightness(samples: Sequence[Image | None], **columns: Any) -> list[float]:
    return [0.0 if s is None else sum(s.levels) / (255 * len(s.levels)) for s in samples]


# -- the policy


def test_samples_are_decoded_and_nothing_else_changes() -> None:
    decoded = image_codes()
    plain, found = draw(decoded.policy), draw(decoded)
    assert found.samples == tuple(decoded.decoder(plain.samples))
    assert all(isinstance(s, Image) and (s.height, s.width) == (4, 4) for s in found.samples)
    assert torch.equal(found.states["tokens"], plain.states["tokens"])
    assert torch.equal(found.logp, plain.logp)
    torch.testing.assert_close(score_sites(decoded.sites(found)).logp.squeeze(-1), found.logp)


def test_gradients_are_those_of_the_bare_token_policy() -> None:
    decoded = image_codes().double()
    bare = copy.deepcopy(decoded.policy)
    rollout = draw(decoded)
    advantage = torch.linspace(-1, 1, len(rollout), dtype=torch.float64)
    weight = torch.full((len(rollout),), 1 / 24, dtype=torch.float64)
    for policy in (decoded, bare):
        grpo_loss(score_sites(policy.sites(rollout)), None, advantage, weight).loss.backward()
    own = {name: p.grad for name, p in decoded.policy.named_parameters()}
    wanted = {name: p.grad for name, p in bare.named_parameters()}
    assert own.keys() == wanted.keys()
    for name, grad in wanted.items():
        assert grad is None or torch.equal(own[name], grad), name
    assert sum(float(g.abs().sum()) for g in wanted.values() if g is not None) > 0
    assert isinstance(decoded.decoder, VQDecoder)
    assert all(p.grad is None and not p.requires_grad for p in decoded.decoder.parameters())


def test_training_changes_neither_weights_nor_outputs_of_the_decoder() -> None:
    decoded = image_codes()
    decoder = decoded.decoder
    assert isinstance(decoder, VQDecoder)
    texts = [code_text(c) for c in itertools.product(range(3), repeat=4)]
    before, images = copy.deepcopy(decoder.state_dict()), decoder(texts)
    settings = GRPOConfig(
        max_steps=5, num_generations=8, generation_batch_size=16, learning_rate=1e-2, weight_decay=0.1, beta=0.01, ema_decay=0.9
    )
    trainer = GRPOTrainer(decoded, brightness, settings)
    start = copy.deepcopy(decoded.policy.state_dict())
    trainer.train()
    for frozen in (decoder, trainer.best_policy.decoder):
        assert all(torch.equal(frozen.state_dict()[name], value) for name, value in before.items())
        assert frozen(texts) == images
    assert any(not torch.equal(decoded.policy.state_dict()[name], value) for name, value in start.items())


def test_the_decoder_is_frozen_and_stays_in_eval_mode() -> None:
    decoded = image_codes()
    assert isinstance(decoded.decoder, VQDecoder)
    decoded.train()
    assert decoded.policy.training
    assert not any(module.training for module in decoded.decoder.modules())
    assert not decoded.eval().policy.training
    trainable = {name.split(".")[0] for name, p in decoded.named_parameters() if p.requires_grad}
    assert trainable == {"policy"}


def test_a_checkpoint_holds_the_decoder(tmp_path: Path) -> None:
    decoded = image_codes()
    loaded = read_policy(save(tmp_path / "policy", decoded, metadata={}))
    assert isinstance(loaded, DecodedPolicy)
    assert draw(loaded).samples == draw(decoded).samples
    plain = DecodedPolicy(token_policy(["*", ".", "+.", "++."], PATTERN, 4), GraphSequences())
    assert read_policy(save(tmp_path / "plain", plain, metadata={})).decoder == GraphSequences()


def test_a_network_is_no_argument_decode_of_a_policy() -> None:
    told = r"decode: VQDecoder is a network, expected a function \(DecodedPolicy\(policy, network\) wraps one\)"
    arguments = token_policy(["<0>"], CODES, 4).init_args()
    with pytest.raises(ValueError, match=told):
        TokenPolicy(**arguments, decode=code_decoder())
    encoder = Encoder(EncoderConfig(layers=1, heads=2, width=8, num_tokens=len(arguments["tokenizer"]), block_size=4))
    with pytest.raises(ValueError, match=told):
        MaskedTextPolicy(encoder, arguments["tokenizer"], 4, decode=code_decoder())


def test_a_decoder_that_loses_samples_is_refused() -> None:
    with pytest.raises(ValueError, match="decoder: gave 5 objects for 6 samples, expected one per sample"):
        draw(DecodedPolicy(token_policy("CO", CHARACTERS, 3), lambda texts: texts[1:]))


def test_a_policy_that_is_no_module_is_refused() -> None:
    with pytest.raises(TypeError, match="policy: NoneType is no"):
        DecodedPolicy(None, GraphSequences())  # type: ignore[arg-type]


def test_conditions_are_checked_by_the_inner_policy() -> None:
    decoded = DecodedPolicy(token_policy(["<0>", "3"], CODES, 2, prompt="label"), code_decoder(2))
    decoded.check_condition({"label": "3"})
    with pytest.raises(ValueError, match="label: "):
        decoded.check_condition({"label": "4"})


def test_the_conformance_kit_passes() -> None:
    policy = image_codes()
    rows = torch.tensor(list(itertools.product(range(3), repeat=4)), dtype=torch.uint8) + NUM_SPECIAL
    space = Rollout(
        states={"tokens": rows},
        group=torch.zeros(len(rows), dtype=torch.long),
        logp=torch.zeros(len(rows), 4),
        units=torch.ones(len(rows), 4, dtype=torch.long),
        size=torch.full((len(rows),), 4),
        max_units=4,
        samples=("",) * len(rows),
    )
    shades = sorted(brightness(policy.decoder([code_text(row) for row in (rows - NUM_SPECIAL).tolist()])))

    def bright(samples: Sequence[Image | None], **columns: Any) -> list[float]:
        return [float(x > shades[60]) for x in brightness(samples)]

    settings = GRPOConfig(max_steps=60, num_generations=16, generation_batch_size=64, learning_rate=2e-2)
    report = check_policy(policy, [Context(0), Context(0), Context(1)], space=space, reward=bright, samples=600, learning=settings)
    failed = [row for row in report.rows if row.outcome == "failed"]
    assert not failed, failed
    assert {row.law for row in report.rows if row.outcome == "skipped"} <= {"permutation", "padding", "ratio bf16", "replayable"}


# -- images


def test_codes_become_images_and_other_text_does_not() -> None:
    decoder = code_decoder()
    drawn = decoder(["<0><1><2><0>", "", "<0><1><2>", "<0><1><2><3>", "<0><1><2>1", "<0><1><2><0>"])
    assert [image is None for image in drawn] == [False, True, True, True, True, False]
    assert drawn[0] == drawn[5] == Image.of(decoder.network(torch.tensor([[0, 1, 2, 0]]))[0])
    assert decoder([]) == []
    assert decoder([f"<0><1><2><{'0' * 5000}>"]) == [None]


@pytest.mark.parametrize("name", ["length", "codes", "batch_size"])
def test_sizes_of_an_image_decoder_are_checked(name: str) -> None:
    sizes = {"length": 4, "codes": 3, "batch_size": 2} | {name: 0}
    with pytest.raises(ValueError, match=f"{name}: 0, expected at least 1"):
        VQDecoder(CodeDecoder(CONFIG), **sizes)


def test_batches_of_images_change_nothing() -> None:
    decoder, texts = code_decoder(), [code_text(c) for c in itertools.product(range(3), repeat=4)]
    whole = decoder(texts)
    decoder.batch_size = 7
    assert decoder(texts) == whole
    assert len({str(image) for image in whole}) > 1


# -- molecules


def test_a_decoder_with_an_inverse_lets_the_policy_learn_from_any_object() -> None:
    policy = DecodedPolicy(token_policy(["*", ".", "+.", "++."], PATTERN, 4), GraphSequences())
    graph, other = "A_", "Bw"  # an edge, and a triangle, whose text has the token ">."
    assert is_replayable(policy)
    assert policy.can_draw(graph)
    assert not policy.can_draw(other)
    assert not policy.can_draw("CCO")
    made = policy.rollout_of([graph])
    assert made.samples == (graph,)
    wanted = score_sites(policy.policy.sites(policy.policy.rollout_of(["*+."]))).logp
    assert torch.equal(score_sites(policy.sites(made)).logp, wanted)


def test_a_decoder_without_an_inverse_does_not() -> None:
    policy = image_codes()
    assert not hasattr(policy, "rollout_of")
    assert not hasattr(policy, "can_draw")


def test_selfies_become_canonical_smiles() -> None:
    pytest.importorskip("selfies")
    decoder = SelfiesDecoder()
    benzene = "[C][=C][C][=C][C][=C][Ring1][=Branch1]"
    assert decoder([benzene, "[O][C][C]", "[C][.][C]", "", "[nonsense]"]) == ["c1ccccc1", "CCO", None, None, None]


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "selfies", None)
    with pytest.raises(ImportError, match=r"selfies is not installed; pip install 'discrete-grpo\[selfies\]'"):
        SelfiesDecoder()(["[C]"])


def test_training_on_selfies_raises_the_reward() -> None:
    pytest.importorskip("selfies")
    alphabet = ["[C]", "[=C]", "[N]", "[O]", "[F]", "[Branch1]", "[Ring1]"]
    policy = DecodedPolicy(token_policy(alphabet, SELFIES, 8), SelfiesDecoder())

    def oxygen(samples: Sequence[str | None], **columns: Any) -> list[float]:
        return [0.0 if s is None else s.count("O") / 8 for s in samples]

    before = draw(policy, 200, 1).samples
    assert all(s is None or "Ring" not in s for s in before)
    after = trained(policy, oxygen, 12).samples
    assert sum(oxygen(after)) > 1.5 * sum(oxygen(before))


def trained(policy: DecodedPolicy, reward: Any, steps: int) -> Rollout:
    settings = GRPOConfig(max_steps=steps, num_generations=16, generation_batch_size=64, learning_rate=1e-2)
    GRPOTrainer(policy, reward, settings).train()
    return draw(policy, 200, 1)


# -- graphs


def test_training_on_graphs_raises_the_reward() -> None:
    policy = DecodedPolicy(token_policy(["*", ".", "+.", "++.", ">."], PATTERN, 6), GraphSequences())

    def edges(samples: Sequence[str | None], **columns: Any) -> list[float]:
        return [0.0 if s is None else from_graph6(s).number_of_edges() / 3 for s in samples]

    before, after = draw(policy, 200, 1).samples, trained(policy, edges, 15).samples
    assert sum(edges(after)) > 2 * sum(edges(before))
    assert sum(s is not None for s in after) > sum(s is not None for s in before)
