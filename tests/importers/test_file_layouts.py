"""Layouts of foreign files: which of several networks is read, under which keys and prefixes; files that are empty or truncated."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from discrete_grpo.importers import import_digress, import_graph_grpo, import_midi, import_molgpt, import_reinvent
from discrete_grpo.importers.tensors import read_safetensors
from discrete_grpo.runs.checkpoint import CheckpointError
from tests.imported import PLANAR, Made, assert_their_logits, defog, digress, one_line
from tests.molgpt_reference import random_state

TRAINED = ["", "model.", "module.", "module.model.", "model.module.", "model._orig_mod.", "policy.net."]
AVERAGES = ["ema.", "ema_model.module.", "model.ema.", "averaged.", "ema_"]


def below(prefix: str, state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {prefix + name: tensor for name, tensor in state.items()}


def averaged(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Other weights of the same shapes, as an exponential average has them."""
    return {name: tensor + 1 for name, tensor in state.items()}


def stored(path: Path, *parts: dict[str, Any], key: str | None = "state_dict") -> Path:
    state = {name: tensor for part in parts for name, tensor in part.items()}
    torch.save(state if key is None else {"epoch": 3, key: state}, path)
    return path


# -- which network is read


@pytest.mark.parametrize("prefix", TRAINED)
@pytest.mark.parametrize("key", [None, "state_dict", "model_state_dict"])
def test_a_network_is_found_under_any_prefix(tmp_path: Path, prefix: str, key: str | None) -> None:
    made = digress()
    path = stored(tmp_path / "x.ckpt", below(prefix, made[0]), key=key)
    assert_their_logits(import_digress(path, dataset="qm9").policy, made)


@pytest.mark.parametrize("average", AVERAGES)
@pytest.mark.parametrize("prefix", ["", "model.", "module.model."])
@pytest.mark.parametrize("first", [True, False])
def test_averages_beside_the_weights_are_not_read(tmp_path: Path, average: str, prefix: str, first: bool) -> None:
    made = digress()
    others = below(average, averaged(made[0])) | {average.removesuffix("module.") + "n_averaged": torch.zeros(())}
    parts = (others, below(prefix, made[0])) if first else (below(prefix, made[0]), below(average, averaged(made[0])))
    path = stored(tmp_path / "x.ckpt", *parts)
    assert_their_logits(import_digress(path, dataset="qm9").policy, made)


@pytest.mark.parametrize(
    "pair", [("ema.", "net."), ("model.", "module.model."), ("", "model."), ("policy.", "reference."), ("model.", "model.model.")]
)
def test_a_file_with_two_networks_is_refused(tmp_path: Path, pair: tuple[str, str]) -> None:
    state = digress()[0]
    path = stored(tmp_path / "x.ckpt", *(below(prefix, state) for prefix in pair))
    with pytest.raises(CheckpointError, match=r"^path: .*x\.ckpt holds 2 networks \(.*, expected one") as error:
        import_digress(path, dataset="qm9")
    one_line(error)
    assert all(f"{prefix}mlp_in_X.0.weight" in str(error.value) for prefix in pair)


def test_the_distributions_are_those_of_the_module_of_the_network(tmp_path: Path) -> None:
    made: Made = defog("planar", PLANAR, PLANAR, pooling="biased_std")
    one, other = ({"p0_node_dist": torch.ones(1), "p0_edge_dist": torch.tensor(p)} for p in ([0.7, 0.3], [0.2, 0.8]))
    network = below("model.", made[0])
    parts = below("model.", one | network), below("average.", other | averaged(network))
    for k, order in enumerate((parts, parts[::-1])):
        policy: Any = import_graph_grpo(stored(tmp_path / f"{k}.ckpt", *order), dataset="planar", num_steps=7).policy
        assert_their_logits(policy, made, PLANAR, PLANAR)
        assert policy.edge_kernel.noise.prior == pytest.approx((0.7, 0.3))


TOKENS = ["(", ")", "<", "C", "O"]


def molgpt_options(folder: Path) -> dict[str, Any]:
    (folder / "stoi.json").write_text(json.dumps(TOKENS))
    return {"vocabulary": folder / "stoi.json", "heads": 4}


@pytest.mark.parametrize("prefix", ["", "module.", "model.", "model.module."])
@pytest.mark.parametrize("key", [None, "state_dict", "model_state_dict", "model"])
def test_molgpt_is_found_under_any_prefix_and_key(tmp_path: Path, prefix: str, key: str | None) -> None:
    options, state = molgpt_options(tmp_path), random_state(len(TOKENS), 10)
    torch.save(state, tmp_path / "plain.pt")
    path = stored(tmp_path / "x.pt", below(prefix, state), below("ema.", averaged(state)), key=key)
    plain, found = (import_molgpt(file, **options).state_dict() for file in (tmp_path / "plain.pt", path))
    assert all(torch.equal(found[name], tensor) for name, tensor in plain.items())


def test_a_file_without_molgpt_is_told_by_its_keys(tmp_path: Path) -> None:
    torch.save({"weights": random_state(len(TOKENS), 10), "epoch": 3}, tmp_path / "x.pt")
    said = r"x\.pt has no tok_emb\.weight \(epoch, weights\), expected a network of MolGPT"
    with pytest.raises(CheckpointError, match=said) as error:
        import_molgpt(tmp_path / "x.pt", **molgpt_options(tmp_path))
    one_line(error)


# -- files that were not copied to their end


def readers(folder: Path) -> dict[str, Callable[[Path], object]]:
    options = molgpt_options(folder)
    return {
        "digress": lambda path: import_digress(path, dataset="qm9"),
        "midi": import_midi,
        "molgpt": lambda path: import_molgpt(path, **options),
        "reinvent": import_reinvent,
    }


@pytest.mark.parametrize("source", ["digress", "midi", "molgpt", "reinvent"])
@pytest.mark.parametrize("share", [0.001, 0.5, 0.9, 0.999])
def test_a_truncated_file_is_named_as_such(tmp_path: Path, source: str, share: float) -> None:
    path = stored(tmp_path / "x.ckpt", below("model.", digress()[0]))
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
    with pytest.raises(CheckpointError, match=r"^path: .*x\.ckpt is truncated .*, expected a complete file") as error:
        readers(tmp_path)[source](path)
    one_line(error)
    assert len(str(error.value)) < len(str(path)) + 100


@pytest.mark.parametrize("source", ["digress", "midi", "molgpt", "reinvent"])
def test_an_empty_file_is_named_as_such(tmp_path: Path, source: str) -> None:
    (tmp_path / "x.ckpt").touch()
    with pytest.raises(CheckpointError, match=r"^path: .*x\.ckpt is empty, expected the weights of a model$"):
        readers(tmp_path)[source](tmp_path / "x.ckpt")
    (tmp_path / "x.safetensors").touch()
    with pytest.raises(CheckpointError, match=r"^path: .*x\.safetensors is empty, expected the weights of a model$"):
        read_safetensors(tmp_path / "x.safetensors")
