"""Models of REINVENT: the same logits as torch's own cells give, nothing executed, every misfit named in one line."""

from __future__ import annotations

import json
import os
import pickle
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from discrete_grpo.domains.tokenizer import BOS, EOS, NUM_SPECIAL
from discrete_grpo.importers import import_reinvent
from discrete_grpo.importers.tensors import read_pickle
from discrete_grpo.policies.tokens import TokenPolicy
from discrete_grpo.recipes.loading import load_policy
from discrete_grpo.recipes.pretraining.sft import SFTRecipe, run_sft
from discrete_grpo.runs.checkpoint import CheckpointError, save
from discrete_grpo.runs.recorder import read_evaluation
from discrete_grpo.training.config import PretrainConfig
from tests.imported import check_as_a_policy, one_line

# -- REINVENT


class TheirRNN(nn.Module):
    """A REINVENT network by its tensors' names, run with torch's layers."""

    def __init__(self, num_tokens: int, cell: str, normalise: bool) -> None:
        super().__init__()
        self._embedding = nn.Embedding(num_tokens, 5)
        self._rnn: Any = (nn.LSTM if cell == "lstm" else nn.GRU)(5, 8, num_layers=2, batch_first=True)
        self._linear = nn.Linear(8, num_tokens)
        self.normalise = normalise

    def forward(self, ids: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        out, state = self._rnn(self._embedding(ids), state)
        if self.normalise:
            out = nn.functional.layer_norm(out, out.shape[1:])
        return self._linear(out), state


REINVENT = {"$": 0, "^": 1, "(": 2, ")": 3, "1": 4, "=": 5, "Br": 6, "C": 7, "N": 8, "O": 9, "[nH]": 10, "c": 11}
PARAMS = {"layer_size": 8, "num_layers": 2, "embedding_layer_size": 5, "dropout": 0.1}


def their_network(cell: str, normalise: bool = False) -> TheirRNN:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        return TheirRNN(len(REINVENT), cell, normalise).eval()


MODULES = ["reinvent_models", "reinvent_models.vocabulary"]


def forget() -> None:
    for name in MODULES:
        sys.modules.pop(name, None)


@pytest.fixture
def reinvent() -> Iterator[types.ModuleType]:
    """A module of the name REINVENT's vocabulary class has, there while a file is written and gone when it is read."""
    made = [types.ModuleType(name) for name in MODULES]
    for name in ("Vocabulary", "SMILESTokenizer", "ModelMetaData"):
        setattr(made[-1], name, type(name, (), {"__module__": MODULES[-1]}))
    sys.modules.update(zip(MODULES, made, strict=True))
    yield made[-1]
    forget()


def prior(cell: str, vocabulary: Any, *, normalise: bool = False, **more: Any) -> dict[str, Any]:
    return {
        "vocabulary": vocabulary,
        "max_sequence_length": 12,
        "network": their_network(cell, normalise).state_dict(),
        "network_params": PARAMS | {"cell_type": cell, "layer_normalization": normalise},
        **more,
    }


def old_vocabulary(module: Any) -> Any:
    found = module.Vocabulary()
    found._tokens = {**REINVENT, **{k: t for t, k in REINVENT.items()}}
    found._current_id = len(REINVENT)
    return found


def new_vocabulary() -> dict[str, Any]:
    return {"tokens": REINVENT, "pad_token": 0, "bos_token": 1, "eos_token": 0, "unk_token": None}


def write(path: Path, content: Any, *, zipped: bool = True) -> Path:
    torch.save(content, path, _use_new_zipfile_serialization=zipped)
    return path


def assert_their_logits(policy: TokenPolicy, cell: str, normalise: bool = False) -> None:
    network, state, columns = their_network(cell, normalise), None, []
    theirs = [REINVENT[t] for t in ("^", "C", "Br", "(", "[nH]", "c", "1")]
    with torch.no_grad():
        for k in theirs:  # token by token, as REINVENT draws
            out, state = network(torch.tensor([[k]]), state)
            columns.append(out[0, 0])
    found = policy.network(torch.tensor([[BOS, *policy.tokenizer.encode("CBr([nH]c1")]]))[0]
    expected = torch.stack(columns)
    torch.testing.assert_close(found[:, NUM_SPECIAL:], expected[:, 2:], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(found[:, EOS], expected[:, 0], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "before torch 1.6"])
@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_reinvent_2_gives_torchs_own_logits(tmp_path: Path, reinvent: Any, cell: str, zipped: bool) -> None:
    content = prior(cell, old_vocabulary(reinvent), tokenizer=reinvent.SMILESTokenizer())
    path = write(tmp_path / "random.prior", content, zipped=zipped)
    forget()
    policy = import_reinvent(path)
    assert policy.max_length == 11
    assert_their_logits(policy, cell)


@pytest.mark.parametrize("normalise", [False, True])
def test_reinvent_4_gives_torchs_own_logits(tmp_path: Path, reinvent: Any, normalise: bool) -> None:
    metadata = reinvent.ModelMetaData()
    metadata.comments = ["made up"]
    more = {"model_type": "Reinvent", "version": 1, "metadata": metadata, "tokenizer": reinvent.SMILESTokenizer()}
    path = write(tmp_path / "x.prior", prior("lstm", new_vocabulary(), normalise=normalise, **more))
    forget()
    assert_their_logits(import_reinvent(path), "lstm", normalise)


def test_reinvent_from_a_converted_pair(tmp_path: Path) -> None:
    save_file(their_network("gru").state_dict(), tmp_path / "x.safetensors")
    described = {"tokens": REINVENT, "max_sequence_length": 12, "network_params": PARAMS | {"cell_type": "gru"}}
    (tmp_path / "x.json").write_text(json.dumps(described))
    assert_their_logits(import_reinvent(tmp_path / "x.safetensors"), "gru")
    (tmp_path / "x.json").write_text("[]")
    with pytest.raises(CheckpointError, match="holds list, expected a dictionary"):
        import_reinvent(tmp_path / "x.safetensors")


def test_reinvent_is_trained_further_on_samples_of_a_file(tmp_path: Path) -> None:
    given = import_reinvent(write(tmp_path / "x.prior", prior("gru", REINVENT)))
    policy = save(tmp_path / "policy", given, metadata={"kind": "molecules"})
    data = tmp_path / "data.smi"
    data.write_text("CCO\nCCN\nOC1CC1\nCCBr\nC=O\nNC=O\n")
    config = PretrainConfig(max_steps=12, batch_size=4, learning_rate=3e-3, warmup_steps=0, ema_decay=0.0)
    recipe = SFTRecipe(str(policy), str(data), str(tmp_path / "run"), test_share=0.2, pretrain=config, evaluation_samples=4)
    assert type(load_policy(run_sft(recipe)).network) is type(given.network)
    stages = read_evaluation(tmp_path / "run")
    assert stages["after"]["test_loss"] < stages["before"]["test_loss"]


def test_reinvent_is_a_policy(tmp_path: Path) -> None:
    path = write(tmp_path / "x.prior", prior("gru", REINVENT))
    check_as_a_policy(import_reinvent(path), tmp_path / "out", {})


class Evil:
    """Makes a folder when unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("zipped", [True, False])
def test_reinvent_executes_nothing(tmp_path: Path, zipped: bool) -> None:
    ran = tmp_path / "ran"
    path = write(tmp_path / "evil.prior", prior("gru", Evil(ran)), zipped=zipped)
    with pytest.raises(CheckpointError, match=r"is not read, since reading it could run code \(.*mkdir") as error:
        import_reinvent(path)
    one_line(error)
    assert not ran.exists()
    torch.load(path, weights_only=False)
    assert ran.exists(), "the file would have run, had it been unpickled"


def test_a_known_name_does_not_run_the_class_of_that_name(tmp_path: Path, reinvent: Any) -> None:
    ran = tmp_path / "ran"
    reinvent.Vocabulary.__setstate__ = lambda self, state: ran.touch()
    path = write(tmp_path / "x.prior", prior("gru", old_vocabulary(reinvent)))
    assert import_reinvent(path).max_length == 11, "the foreign class is importable here, and still not used"
    assert not ran.exists()
    torch.load(path, weights_only=False)
    assert ran.exists()


def test_stand_ins_are_forgotten_afterwards(tmp_path: Path, reinvent: Any) -> None:
    path = write(tmp_path / "x.prior", prior("gru", old_vocabulary(reinvent)))
    forget()
    import_reinvent(path)
    assert not any("reinvent" in str(name) for name in torch.serialization.get_safe_globals())
    with pytest.raises(CheckpointError, match="could run code"):
        read_pickle(path)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model_type": "Libinvent"}, "model_type: 'Libinvent' in .*, expected 'Reinvent'"),
        ({"network": None}, "has no network, expected a prior"),
        ({"vocabulary": None}, "vocabulary: NoneType in "),
        ({"vocabulary": {"C": 0, "^": 1}}, r"vocabulary: no token '\$'"),
        ({"vocabulary": REINVENT | {"F": 11}}, "rows of .* are not 0 to 12"),
        ({"vocabulary": REINVENT | {"F": 12}}, r"_embedding\.weight \(12, 5\) for \(13, 5\)"),
        ({"max_sequence_length": None}, "max_sequence_length: None in "),
        ({"network_params": PARAMS | {"cell_type": "rnn"}}, "cell: 'rnn', expected one of gru, lstm"),
        ({"network_params": [3, 512]}, r"network_params: \[3, 512\] in .*, expected names and their values"),
        ({"network_params": PARAMS | {"num_layers": 3}}, r"_rnn\.weight_ih_l2 missing"),
        ({"network_params": PARAMS | {"num_layers": 1}}, r"_rnn\.weight_ih_l1 unexpected"),
    ],
)
def test_reinvent_parts_that_do_not_fit_are_named(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    path = write(tmp_path / "x.prior", prior("gru", REINVENT) | change)
    with pytest.raises(CheckpointError, match=said) as error:
        import_reinvent(path)
    one_line(error)


@pytest.mark.parametrize("content", [b"", b"no pickle", pickle.dumps([1])[:-1], b"PK\x03\x04 broken"])
def test_damaged_files_are_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.prior"
    with pytest.raises(CheckpointError, match="is no file"):
        import_reinvent(path)
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"x\.prior") as error:
        import_reinvent(path)
    one_line(error)
