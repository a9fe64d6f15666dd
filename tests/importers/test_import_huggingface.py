"""Language models of HuggingFace: the library's own logits for every kind of tokenizer, and nothing of a folder is run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from discrete_grpo.domains.tokenizer import BOS, EOS, NUM_SPECIAL
from discrete_grpo.importers import import_huggingface
from discrete_grpo.models.huggingface import HuggingFaceLM
from discrete_grpo.runs.checkpoint import CheckpointError, read_policy, save
from tests.imported import check_as_a_policy, one_line

ALPHABET = ["#", "(", ")", "1", "=", "Br", "C", "Cl", "N", "O", "[nH]", "c"]


def word_tokenizer() -> Any:
    """SMILES tokens as words, cut by an expression; no decoder, so the library puts spaces between them."""
    tk = pytest.importorskip("tokenizers")
    words = {t: k for k, t in enumerate(["<pad>", *ALPHABET, "<s>", "<unk>", "</s>"])}
    made = tk.Tokenizer(tk.models.WordLevel(words, unk_token="<unk>"))
    made.pre_tokenizer = tk.pre_tokenizers.Split(tk.Regex(r"\[[^\]]+\]|Br|Cl|."), "isolated")
    return made, {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}


def byte_tokenizer() -> Any:
    """Byte-level merges learned on a few molecules; no BOS but the end of text."""
    tk = pytest.importorskip("tokenizers")
    made = tk.Tokenizer(tk.models.BPE())
    made.pre_tokenizer = tk.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tk.decoders.ByteLevel()
    trainer = tk.trainers.BpeTrainer(vocab_size=300, initial_alphabet=tk.pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    made.train_from_iterator(["CC(=O)Nc1ccc(O)cc1", "CCO CCO", "c1ccccc1Cl"], trainer)
    made.add_special_tokens(["<|endoftext|>"])
    return made, {"eos_token": "<|endoftext|>"}


def marked_tokenizer() -> Any:
    """Pieces whose first one in a text carries a marker, BOS put in front by the tokenizer itself."""
    tk = pytest.importorskip("tokenizers")
    pieces = [("<unk>", 0.0), ("<s>", 0.0), ("</s>", 0.0), ("▁", -1.0), ("▁C", -1.5), ("CC", -2.0), ("c1", -2.0)]
    pieces += [(t, -3.0) for t in [*"#()1=CNOcl"]]
    made = tk.Tokenizer(tk.models.Unigram(pieces, unk_id=0))
    made.pre_tokenizer = tk.pre_tokenizers.Metaspace(prepend_scheme="always")
    made.decoder = tk.decoders.Metaspace(prepend_scheme="always")
    made.post_processor = tk.processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return made, {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}


def piece_tokenizer() -> Any:
    """Pieces that say inside a word that they continue it, so two pieces have the text C; ends put on by the tokenizer."""
    tk = pytest.importorskip("tokenizers")
    words = ["[UNK]", "[CLS]", "[SEP]", "C", "c", "##C", "##O", "##c", "##1", "##CC", "##(", "##)", "##=", "##N", "O"]
    made = tk.Tokenizer(tk.models.WordPiece({t: k for k, t in enumerate(words)}, unk_token="[UNK]"))
    made.decoder = tk.decoders.WordPiece(prefix="##")
    made.post_processor = tk.processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)])
    return made, {"unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}


GPT2 = {"n_positions": 14, "n_embd": 16, "n_layer": 2, "n_head": 4}
BERT = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4}
BERT |= {"max_position_embeddings": 14}
SIZES = {"gpt2": GPT2, "bert": BERT, "llama": BERT | {"num_key_value_heads": 2}}


def hugging(folder: Path, make_tokenizer: Any, kind: str, **changes: Any) -> Any:
    """A tiny model with random weights, saved as its users save theirs; returns the model."""
    library = pytest.importorskip("transformers")
    made, special = make_tokenizer()
    tokenizer = library.PreTrainedTokenizerFast(tokenizer_object=made, **special)
    sizes = SIZES[kind] | {"vocab_size": len(tokenizer) + 3} | changes
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        model = library.AutoModelForCausalLM.from_config(library.AutoConfig.for_model(kind, **sizes)).eval()
        for parameter in model.parameters():
            nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return model


CASES = [(word_tokenizer, "gpt2"), (byte_tokenizer, "gpt2"), (marked_tokenizer, "llama"), (piece_tokenizer, "llama")]


@pytest.mark.parametrize(("make_tokenizer", "kind"), CASES)
def test_huggingface_gives_the_librarys_own_logits(tmp_path: Path, make_tokenizer: Any, kind: str) -> None:
    model = hugging(tmp_path, make_tokenizer, kind)
    policy = import_huggingface(tmp_path)
    network = cast(HuggingFaceLM, policy.network)
    made, special = make_tokenizer()
    for smiles in ("CCO", "c1ccccc1", "CC(=O)N"):
        theirs = made.encode(smiles, add_special_tokens=False).ids
        ours = policy.tokenizer.encode(smiles)
        first = made.token_to_id(special.get("bos_token") or special.get("cls_token") or special["eos_token"])
        last = made.token_to_id(special.get("eos_token") or special["sep_token"])
        names = network.ids.tolist()
        assert (names[BOS], names[EOS]) == (first, last)
        assert [names[k] for k in ours] == theirs
        with torch.no_grad():
            expected = model(torch.tensor([[first, *theirs]])).logits[0]
            found = network(torch.tensor([[BOS, *ours]]))[0]
        torch.testing.assert_close(found[:, NUM_SPECIAL:], expected[:, names[NUM_SPECIAL:]], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(found[:, EOS], expected[:, last], atol=1e-5, rtol=1e-5)
        assert policy.tokenizer.decode([BOS, *ours, EOS]) == smiles
        assert policy.tokenizer.knows(smiles)
    assert not policy.tokenizer.knows("C§") or make_tokenizer is byte_tokenizer
    assert policy.max_length == 14


def test_huggingface_with_weights_that_are_no_numbers_is_refused(tmp_path: Path) -> None:
    model = hugging(tmp_path, word_tokenizer, "gpt2")
    with torch.no_grad():
        model.transformer.ln_f.bias[0] = float("nan")
    model.save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match=r"no finite numbers: transformer\.ln_f\.bias \(1 of 16"):
        import_huggingface(tmp_path)


@pytest.mark.parametrize(("make_tokenizer", "kind"), [CASES[0], CASES[2]])
def test_huggingface_is_a_policy(tmp_path: Path, make_tokenizer: Any, kind: str) -> None:
    hugging(tmp_path / "in", make_tokenizer, kind)
    policy = import_huggingface(tmp_path / "in", max_length=9)
    assert policy.max_length == 9
    check_as_a_policy(policy, tmp_path / "out", {})


def test_huggingface_is_rebuilt_without_its_folder_and_leaves_the_random_state(tmp_path: Path) -> None:
    hugging(tmp_path / "in", word_tokenizer, "gpt2", attn_pdrop=0.4)
    state = torch.get_rng_state()
    policy = import_huggingface(tmp_path / "in")
    out = save(tmp_path / "out", policy, metadata={})
    for file in (tmp_path / "in").iterdir():
        file.unlink()
    again = read_policy(out)
    assert torch.equal(torch.get_rng_state(), state)
    tokens = torch.tensor([[BOS, 5, 6, 7]])
    assert torch.equal(again.network(tokens), policy.network(tokens))
    again.train()
    torch.testing.assert_close(again.network(tokens), policy.network(tokens), atol=0, rtol=0)
    assert again.tokenizer == policy.tokenizer
    assert again.network.init_args() == cast(HuggingFaceLM, policy.network).init_args()


def test_special_tokens_without_a_role_are_not_drawn(tmp_path: Path) -> None:
    made, _ = word_tokenizer()
    made.add_special_tokens(["<pad>", "<unk>", "<mask>", "<s>", "</s>"])
    hugging(tmp_path, lambda: (made, {"bos_token": "<s>", "eos_token": "</s>"}), "gpt2")
    assert sorted(import_huggingface(tmp_path).tokenizer.tokens) == sorted(ALPHABET)


def test_huggingface_ends_can_be_named(tmp_path: Path) -> None:
    hugging(tmp_path, word_tokenizer, "gpt2")
    policy = import_huggingface(tmp_path, bos="#", eos="<pad>")
    vocabulary = word_tokenizer()[0].get_vocab()
    assert cast(HuggingFaceLM, policy.network).ids[[BOS, EOS]].tolist() == [vocabulary["#"], vocabulary["<pad>"]]
    assert "#" not in policy.tokenizer.tokens
    assert "#" not in import_huggingface(tmp_path, bos="<pad>", eos="#").tokenizer.tokens
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"bos": "X"}, "bos: 'X', expected a token of the vocabulary"),
        ({"max_length": 15}, r"max_length: 15, expected 1 to 14 \(positions of the model\)"),
        ({"examples": ("?",)}, "decodes none of the examples"),
    ]
    for change, said in wrong:
        with pytest.raises(ValueError, match=said) as error:
            import_huggingface(tmp_path, **change)
        one_line(error)


def test_ends_that_the_tokenizer_puts_count_before_those_it_names(tmp_path: Path) -> None:
    made, special = piece_tokenizer()
    hugging(tmp_path / "one", lambda: (made, special | {"bos_token": "[UNK]", "eos_token": "[UNK]"}), "llama")
    policy = import_huggingface(tmp_path / "one")
    assert cast(HuggingFaceLM, policy.network).ids[[BOS, EOS]].tolist() == [1, 2]
    tk = pytest.importorskip("tokenizers")
    ends = [("[CLS]", 1), ("[SEP]", 2)]
    made.post_processor = tk.processors.TemplateProcessing(single="[CLS] [SEP] $A [SEP]", special_tokens=ends)
    hugging(tmp_path / "two", lambda: (made, special), "llama")
    with pytest.raises(ValueError, match="the tokenizer puts 2 tokens before and 1 behind a text, expected 0 or 1"):
        import_huggingface(tmp_path / "two")


def test_a_tokenizer_of_one_id_more_than_the_model_has_is_refused(tmp_path: Path) -> None:
    size = len(word_tokenizer()[0].get_vocab())
    hugging(tmp_path / "equal", word_tokenizer, "gpt2", vocab_size=size)
    assert import_huggingface(tmp_path / "equal").max_length > 0
    hugging(tmp_path / "more", word_tokenizer, "gpt2", vocab_size=size - 1)
    with pytest.raises(CheckpointError, match=f"ids up to {size - 1}, expected less than {size - 1}"):
        import_huggingface(tmp_path / "more")


def test_huggingface_pickles_are_refused(tmp_path: Path) -> None:
    model = hugging(tmp_path, word_tokenizer, "gpt2")
    (tmp_path / "model.safetensors").unlink()
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=r"has pytorch_model\.bin, expected \*\.safetensors") as error:
        import_huggingface(tmp_path)
    one_line(error)
    save_file({"x": torch.zeros(1)}, tmp_path / "other.safetensors")
    with pytest.raises(CheckpointError, match="cannot be read"):
        import_huggingface(tmp_path)
    with pytest.raises(CheckpointError, match=r"has no config\.json"):
        import_huggingface(tmp_path / "nowhere")


def test_huggingface_weights_that_do_not_fit_are_named(tmp_path: Path) -> None:
    model = hugging(tmp_path, word_tokenizer, "gpt2")
    whole = {name: t.clone() for name, t in model.state_dict().items() if name != "lm_head.weight"}
    for name, value, said in [
        ("transformer.h.1.ln_1.weight", None, r"h\.1\.ln_1\.weight missing"),
        ("transformer.more", torch.zeros(2), r"more unexpected"),
        ("transformer.ln_f.bias", torch.zeros(3), r"ln_f\.bias of another shape"),
        ("module.transformer.ln_f.bias", torch.zeros(3), r"begin with 'module\.' are those of a wrapper"),
        (
            "transformer.ln_f.bias",
            torch.zeros(16, dtype=torch.int8),
            r"ln_f\.bias as I8, expected floating-point",
        ),
    ]:
        spoiled = {k: v for k, v in (whole | {name: value}).items() if v is not None}
        save_file(spoiled, tmp_path / "model.safetensors", metadata={"format": "pt"})
        with pytest.raises(CheckpointError, match=said) as error:
            import_huggingface(tmp_path)
        one_line(error)


def test_huggingface_code_of_a_folder_is_not_run(tmp_path: Path) -> None:
    hugging(tmp_path, word_tokenizer, "gpt2")
    ran = tmp_path / "ran"
    (tmp_path / "evil.py").write_text(f"open({str(ran)!r}, 'w')\nclass Config: ...\nclass Model: ...\n")
    config = json.loads((tmp_path / "config.json").read_text())
    config |= {"model_type": "evil", "auto_map": {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match="cannot be read") as error:
        import_huggingface(tmp_path)
    one_line(error)
    assert not ran.exists()


def test_huggingface_models_that_look_ahead_are_refused(tmp_path: Path) -> None:
    hugging(tmp_path, word_tokenizer, "bert")
    with pytest.raises(CheckpointError, match="expected a causal model"):
        import_huggingface(tmp_path)


EVIL = "kernels-community/evil"
NAMED = {
    "attn_implementation": EVIL,
    "_attn_implementation": EVIL,
    "_attn_implementation_internal": EVIL,
    "experts_implementation": EVIL,
    "auto_map": {"AutoConfig": "evil--evil.Config", "AutoModelForCausalLM": "evil--evil.Model"},
    "quantization_config": {"quant_method": "evil"},
    "kernel_config": {"RMSNorm": EVIL},
    "use_kernels": True,
}


@pytest.fixture
def no_kernels(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the library asks its loader of kernels for."""
    library: Any = pytest.importorskip("transformers.modeling_utils")
    asked: list[Any] = []
    for name in ("lazy_import_flash_attention", "kernelize"):
        monkeypatch.setattr(library, name, lambda *a, **k: asked.append(a), raising=False)
    return asked


def test_kernels_a_configuration_names_are_not_loaded(no_kernels: list[Any]) -> None:
    config = {"model_type": "gpt2", "vocab_size": 9, **GPT2, **NAMED}
    network = HuggingFaceLM(config, range(9))
    assert network.model.config._attn_implementation == "sdpa"
    assert not no_kernels
    assert EVIL not in json.dumps(network.init_args())
    assert EVIL not in json.dumps(network.model.config.to_dict())
    nested = HuggingFaceLM(config | {"task_specific_params": {"text": [NAMED | {"kept": 1}]}}, range(9))
    assert nested.config["task_specific_params"] == {"text": [{"kept": 1}]}


def test_kernels_a_folder_names_are_not_loaded(tmp_path: Path, no_kernels: list[Any]) -> None:
    model = hugging(tmp_path, word_tokenizer, "gpt2")
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | NAMED))
    network = cast(HuggingFaceLM, import_huggingface(tmp_path).network)
    assert network.model.config._attn_implementation == "sdpa"
    assert not no_kernels
    assert "evil" not in json.dumps(network.init_args())
    theirs = torch.tensor([[3, 4, 5]])
    torch.testing.assert_close(network.model(theirs).logits, model(theirs).logits, atol=1e-5, rtol=1e-5)


def test_architectures_without_sdpa_are_eager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hugging(tmp_path, word_tokenizer, "gpt2")
    library: Any = pytest.importorskip("transformers")
    monkeypatch.setattr(library.GPT2PreTrainedModel, "_supports_sdpa", False)
    network = cast(HuggingFaceLM, import_huggingface(tmp_path).network)
    assert network.model.config._attn_implementation == "eager"


@pytest.mark.parametrize("content", ["{}", "[]", "no JSON"])
def test_huggingface_configurations_that_are_none_are_named(tmp_path: Path, content: str) -> None:
    hugging(tmp_path, word_tokenizer, "gpt2")
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(CheckpointError, match="cannot be read") as error:
        import_huggingface(tmp_path)
    one_line(error)
