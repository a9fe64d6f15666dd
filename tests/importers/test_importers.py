"""Models of others: the same logits as their own code gives, nothing executed, every misfit named in one line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from discrete_grpo.core.rollout import group_contexts
from discrete_grpo.domains.tokenizer import BOS, EOS, NUM_SPECIAL
from discrete_grpo.importers import import_checkpoint, import_molgpt
from discrete_grpo.importers.tensors import read_pickle
from discrete_grpo.runs.checkpoint import CheckpointError, load_metadata, read_policy, save
from tests import molgpt_reference
from tests.imported import check_as_a_policy, one_line

# -- MolGPT

TOKENS = ["#", "(", ")", "1", "<", "=", "Br", "C", "Cl", "N", "O", "[nH]", "c"]
MOLGPT_END, MOLGPT_START = TOKENS.index("<"), TOKENS.index("C")


def molgpt(folder: Path, num_properties: int = 0, **sizes: Any) -> tuple[Path, dict[str, Any], dict[str, Tensor]]:
    state = molgpt_reference.random_state(len(TOKENS), 10, num_properties=num_properties, **sizes)
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(state, folder / "weights.pt")
    (folder / "stoi.json").write_text(json.dumps({token: k for k, token in enumerate(TOKENS)}))
    names = ("qed", "sas", "logp")[:num_properties]
    return folder / "weights.pt", {"vocabulary": folder / "stoi.json", "heads": 4, "properties": names}, state


@pytest.mark.parametrize("num_properties", [0, 1, 3])
def test_molgpt_gives_the_published_logits(tmp_path: Path, num_properties: int) -> None:
    path, options, state = molgpt(tmp_path, num_properties)
    policy = import_molgpt(path, **options)
    smiles = "CC(=O)Nc1[nH]"
    theirs = [TOKENS.index(t) for t in ("C", "C", "(", "=", "O", ")", "N", "c", "1", "[nH]")]
    values = [0.7, 2.5, -1.25][:num_properties] or None
    expected = molgpt_reference.logits(state, theirs, 4, values)
    ours = torch.tensor([[BOS, *policy.tokenizer.encode(smiles)]])
    found = policy.network(ours, None, None if values is None else torch.tensor([values]))[0]
    ordinary = [k for k, t in enumerate(TOKENS) if t != "<"]
    torch.testing.assert_close(found[:, NUM_SPECIAL:].double(), expected[:, ordinary], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(found[:, EOS].double(), expected[:, MOLGPT_END], atol=1e-5, rtol=1e-5)
    assert policy.tokenizer.decode(policy.tokenizer.encode(smiles)) == smiles


def test_molgpt_draws_with_the_published_probabilities(tmp_path: Path) -> None:
    path, options, state = molgpt(tmp_path, 1)
    policy = import_molgpt(path, **options)
    policy.decode = None
    rollout = policy.sample(group_contexts(1, 6, [{"qed": 0.9}]), generator=torch.Generator().manual_seed(4))
    for text, logp, drawn in zip(rollout.samples, rollout.logp, rollout.units.sum(1).tolist(), strict=True):
        assert text.startswith("C")
        theirs = [MOLGPT_START, *(TOKENS.index(t) for t in policy.tokenizer.split(text))]
        table = molgpt_reference.logits(state, theirs[: drawn if drawn < len(theirs) else None], 4, [0.9]).log_softmax(-1)
        targets = [*theirs[1:], MOLGPT_END][:drawn]
        expected = sum(float(table[t, k]) for t, k in enumerate(targets))
        assert float(logp.sum()) == pytest.approx(expected, abs=1e-4)


def test_molgpt_with_weights_that_are_no_numbers_is_refused(tmp_path: Path) -> None:
    path, options, state = molgpt(tmp_path)
    name = next(name for name in state if name.endswith("bias"))
    torch.save(state | {name: torch.full_like(state[name], float("nan"))}, path)
    with pytest.raises(CheckpointError, match=f"no finite numbers: {name} "):
        import_molgpt(path, **options)


def test_molgpt_is_a_policy(tmp_path: Path) -> None:
    path, options, _ = molgpt(tmp_path, 2)
    check_as_a_policy(import_molgpt(path, **options), tmp_path / "out", {"qed": 0.5, "sas": 2.0})


def test_molgpt_from_safetensors_and_a_list_of_tokens(tmp_path: Path) -> None:
    path, options, state = molgpt(tmp_path)
    save_file(state, tmp_path / "weights.safetensors")
    (tmp_path / "tokens.json").write_text(json.dumps(TOKENS))
    other = import_molgpt(tmp_path / "weights.safetensors", **options | {"vocabulary": tmp_path / "tokens.json"})
    for a, b in zip(import_molgpt(path, **options).parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)


def test_molgpt_texts_that_begin_otherwise_are_refused(tmp_path: Path) -> None:
    path, options, _ = molgpt(tmp_path)
    tokenizer = import_molgpt(path, **options).tokenizer
    assert tokenizer.knows("CO")
    assert not tokenizer.knows("OC")
    assert not tokenizer.knows("ClC")
    with pytest.raises(ValueError, match="begins with 'O', expected 'C'"):
        tokenizer.encode("OC")


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda s: s.pop("blocks.1.attn.query.bias"), r"blocks\.1\.attn\.query\.bias missing"),
        (lambda s: s.update(extra=torch.zeros(2)), "extra unexpected"),
        (lambda s: s.update({"blocks.0.mlp.0.weight": torch.zeros(3, 3)}), r"mlp\.0\.weight \(3, 3\) for \(64, 16\)"),
        (lambda s: s.update({"lstm.weight_ih_l0": torch.zeros(2)}), "conditioned on scaffolds"),
        (lambda s: s.clear(), "expected a network of MolGPT"),
        (lambda s: s.update({3: torch.zeros(2)}), "has the key 3, expected a state_dict with names of tensors"),
        (lambda s: s.update({"tok_emb.weight": torch.tensor(1.0)}), r"tok_emb\.weight \(\), expected a tensor of 2 dimensions"),
        (lambda s: s.update({"prop_nn.weight": torch.zeros(2)}), r"prop_nn\.weight \(2,\), expected a tensor of 2 dimensions"),
        (lambda s: s.update({"tok_emb.weight": torch.zeros(99, 16)}), r"tok_emb\.weight \(99, 16\) for \(13, 16\)"),
    ],
)
def test_molgpt_tensors_that_do_not_fit_are_named(tmp_path: Path, spoil: Any, said: str) -> None:
    path, options, state = molgpt(tmp_path)
    spoil(state)
    torch.save(state, path)
    with pytest.raises(CheckpointError, match=said) as error:
        import_molgpt(path, **options)
    one_line(error)


def test_molgpt_options_that_do_not_fit_are_named(tmp_path: Path) -> None:
    path, options, _ = molgpt(tmp_path, 1)
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"properties": ()}, "properties: none, expected 1 names"),
        ({"start": "S"}, "start: 'S', expected a token"),
        ({"heads": 3}, "heads: 3, expected a divisor of 16, the width of the tensors"),
        ({"vocabulary": tmp_path / "none.json"}, r"^vocabulary: .*none.json cannot be read as JSON"),
    ]
    for change, said in wrong:
        with pytest.raises(ValueError, match=said) as error:
            import_molgpt(path, **options | change)
        one_line(error)
    (tmp_path / "stoi.json").write_text(json.dumps(["C", "O"]))
    with pytest.raises(CheckpointError, match="has no '<', which ends a molecule"):
        import_molgpt(path, **options)


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (("logp", "logp", "qed"), r"properties: 'logp' twice, expected distinct names"),
        (("logp", "", "qed"), r"properties: '', expected the name of a context column"),
        (("logp", " ", "qed"), r"properties: ' ', expected the name of a context column"),
        (("logp", 1, "qed"), r"properties: 1, expected the name of a context column"),
        ("abc", r"properties: 'abc', expected a list of names"),
        (
            ("logp", "reward_x", "qed"),
            r"properties: 'reward_x', expected none of step, .*, reward_\.\.\. or measured_\.\.\.",
        ),
    ],
)
def test_molgpt_names_of_properties_that_are_no_names_are_refused(tmp_path: Path, names: Any, said: str) -> None:
    path, options, _ = molgpt(tmp_path, 3)
    with pytest.raises(ValueError, match=f"^{said}") as error:
        import_molgpt(path, **options | {"properties": names})
    one_line(error)


# -- one door


def test_an_import_is_a_checkpoint_of_molecules(tmp_path: Path) -> None:
    path, options, _ = molgpt(tmp_path / "in")
    out = import_checkpoint(path, "molgpt", tmp_path / "out", **options)
    assert read_policy(out).max_length == 10
    metadata = load_metadata(out)
    assert metadata["kind"] == "molecules"
    assert metadata["source"] == {"format": "molgpt", "name": "weights.pt"}
    assert metadata["date"]


def test_an_earlier_import_or_an_empty_folder_is_replaced(tmp_path: Path) -> None:
    path, options, _ = molgpt(tmp_path / "in")
    (tmp_path / "out").mkdir()
    import_checkpoint(path, "molgpt", tmp_path / "out", **options)
    other = options | {"start": "O"}
    out = import_checkpoint(path, "molgpt", tmp_path / "out", **other)
    assert read_policy(out).tokenizer.knows("OC")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in", "out"]


@pytest.mark.parametrize(
    "files",
    [
        {"thesis.txt": "years"},
        {"config.json": '{"format": 1}', "model.safetensors": "", "thesis.txt": "years"},
        {"config.json": '{"model_type": "gpt2"}', "model.safetensors": ""},
        {"config.json": "[]", "model.safetensors": ""},
        {"config.json": "no JSON", "model.safetensors": ""},
        {"config.json": '{"format": 1}'},
        {"config.json": '{"format": 1, "metadata": {"policy": "smiles-zinc"}}', "model.safetensors": "trained"},
    ],
)
def test_a_folder_of_something_else_is_kept(tmp_path: Path, files: dict[str, str]) -> None:
    (tmp_path / "out").mkdir()
    for name, text in files.items():
        (tmp_path / "out" / name).write_text(text)
    said = "exists and holds .*, expected a new folder or a checkpoint made by this command"
    with pytest.raises(ValueError, match=said) as error:  # before any reading: there is no model
        import_checkpoint(tmp_path / "none.prior", "reinvent", tmp_path / "out")
    one_line(error)
    assert {p.name: p.read_text() for p in (tmp_path / "out").iterdir()} == files


def test_the_folder_of_the_model_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "in" / "model"
    path, options, _ = molgpt(folder)
    (tmp_path / "link").symlink_to(tmp_path)
    monkeypatch.chdir(folder)
    for given, out in [
        (path, folder),
        (path, folder.parent),
        (path, tmp_path / "link"),
        (path, path),
        (Path("weights.pt"), Path()),
    ]:
        with pytest.raises(ValueError, match="exists and holds the model to read, expected a new folder") as error:
            import_checkpoint(given, "molgpt", out, **options)
        one_line(error)
    assert sorted(p.name for p in folder.iterdir()) == ["stoi.json", "weights.pt"]


def test_files_and_links_are_kept(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("years")
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "empty")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    for name in ("file", "link", "dangling"):
        with pytest.raises(ValueError, match=f"out: .*{name} exists and is no folder"):
            import_checkpoint(tmp_path / "none.prior", "reinvent", tmp_path / name)


def test_unknown_sources_and_options_are_named(tmp_path: Path) -> None:
    unknown: Any = "gguf"
    with pytest.raises(ValueError, match="source: 'gguf', expected one of huggingface, molgpt, reinvent"):
        import_checkpoint(tmp_path, unknown, tmp_path / "out")
    with pytest.raises(ValueError, match=r"^heads: 2, expected none: reinvent has no options"):
        import_checkpoint(tmp_path, "reinvent", tmp_path / "out", heads=2)
    with pytest.raises(ValueError, match=r"^vocabulary: None, expected a value, which molgpt needs"):
        import_checkpoint(tmp_path, "molgpt", tmp_path / "out")


def test_a_safetensors_file_is_no_pickle(tmp_path: Path) -> None:
    (tmp_path / "x.safetensors").write_bytes(b"{}")
    with pytest.raises(CheckpointError, match=r"x\.safetensors is a safetensors file, expected one written by torch\.save$"):
        read_pickle(tmp_path / "x.safetensors")


@pytest.mark.parametrize("mark", ["grpo_steps", "offline_steps", "pretraining_steps", "rewards", "trained_from"])
def test_an_import_that_was_trained_is_kept(mark: str, tmp_path: Path) -> None:
    path, options, _ = molgpt(tmp_path / "in")
    out = import_checkpoint(path, "molgpt", tmp_path / "out", **options)
    policy, told = read_policy(out), load_metadata(out)
    shutil.rmtree(out)
    save(out, policy, metadata=told | {mark: 1})
    before = (out / "model.safetensors").read_bytes()
    with pytest.raises(ValueError, match=r"exists and holds .*, expected a new folder or a checkpoint made by this command"):
        import_checkpoint(path, "molgpt", out, **options)
    assert (out / "model.safetensors").read_bytes() == before
