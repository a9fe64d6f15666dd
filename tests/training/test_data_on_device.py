"""Training sets kept on a GPU: the batches of the CPU, without a wait, checked before, and the same bits of a run."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import networkx as nx
import pytest
import torch

from discrete_grpo import PretrainConfig
from discrete_grpo.datasets.molecule_fields import FieldMolecules
from discrete_grpo.datasets.molecules import conditioned, dataset_from_smiles
from discrete_grpo.datasets.own_digraphs import own_digraphs
from discrete_grpo.datasets.own_graphs import own_graphs
from discrete_grpo.datasets.smiles import TokenDataset, token_dataset
from discrete_grpo.datasets.spatial import conformers, spatial_statistics
from discrete_grpo.datasets.spatial_fields import SpatialGraphs, spatial_graphs
from discrete_grpo.datasets.synthetic_graphs import GraphDataset, dataset_from_networkx
from discrete_grpo.datasets.text import LabelledTextDataset, text_dataset
from discrete_grpo.domains.graphs import PackedGraphs
from discrete_grpo.domains.molecule_fields import AtomFields
from discrete_grpo.domains.tokenizer import Property, Tokenizer
from discrete_grpo.training import data_on_device as module
from discrete_grpo.training import pretrain
from discrete_grpo.training.data_on_device import data_on_device, in_memory
from discrete_grpo.training.pretrain import Pretrainer
from tests.pretend_cuda import CUDA, Counts, accelerator, pretending
from tests.pretend_tensors import bare
from tests.toys import tiny_policy
from tests.training.pretend_cuda_parts import count_pretraining

ROWS = torch.tensor([2, 0, 2])


def molecules() -> Any:
    return dataset_from_smiles(["CC(=O)N", "O", "c1ccncc1"])


def tokens() -> TokenDataset:
    values = torch.tensor([[1.0, 2.0], [float("nan"), 3.0], [5.0, 0.0]])
    scales = [Property("logp", 2.0, 1.5), Property("qed", 0.5, 0.2)]
    return token_dataset(
        ["ab", "c", "abcab"], Tokenizer(("a", "b", "c")), prompts=["a", "", "bc"], values=values, properties=scales
    )


def charged() -> FieldMolecules:
    data = dataset_from_smiles(["CC(=O)[O-]", "O", "C[NH3+]"])
    return FieldMolecules(data, AtomFields.of(data.vocabulary))


def space() -> SpatialGraphs:
    made = conformers(["CC(=O)[O-]", "O", "C[NH3+]"]).molecules
    return spatial_graphs(made, spatial_statistics(made))


SETS: dict[str, Any] = {
    "molecules": molecules,
    "conditioned molecules": lambda: conditioned(molecules(), ["MolWt", "TPSA"]),
    "named graphs": lambda: own_graphs([nx.path_graph(3), nx.path_graph(1), nx.cycle_graph(5)]),
    "directed graphs": lambda: own_digraphs([nx.DiGraph([(0, 1), (2, 1)]), nx.DiGraph([(0, 1)]), nx.DiGraph([(1, 0), (2, 3)])]),
    "plain graphs": lambda: dataset_from_networkx([nx.star_graph(3), nx.path_graph(2), nx.path_graph(6)]),
    "tokens": tokens,
    "molecules with charges as a field": charged,
    "molecules in space": space,
    "texts": lambda: text_dataset(["ab", "c", "abcab"]),
    "real and corrupted texts": lambda: LabelledTextDataset(text_dataset(["ab", "c", "abcab"]), torch.tensor([True, False, True])),
}


def tensors(batch: Any) -> dict[str, torch.Tensor]:
    """Every tensor of a batch, by its place."""
    if isinstance(batch, torch.Tensor):
        return {"ids": batch}
    found: dict[str, torch.Tensor] = {}
    for field in dataclasses.fields(batch):
        value = getattr(batch, field.name)
        parts = value if isinstance(value, dict) else {"": value}
        for name, part in parts.items():
            if isinstance(part, torch.Tensor):
                found[f"{field.name} {name}"] = part
            elif part is not None:
                found |= {f"{field.name} {name} {k}": v for k, v in tensors(part).items()}
    return found


@pytest.mark.parametrize("name", SETS)
def test_batches_made_on_the_device_are_those_of_the_cpu_and_nothing_waits(name: str) -> None:
    data = SETS[name]()
    wanted = tensors(data.batch(ROWS))
    with pretending() as cuda:
        moved = data.to(CUDA)
        moved.batch(ROWS)  # tables of pairs are made once
        with cuda.counting() as counts:
            found = tensors(moved.batch(ROWS))
        assert (counts.waits, counts.blocking_copies) == (0, 0), str(counts)
        assert set(found) == set(wanted)
        assert all(value.device == CUDA for value in found.values())
        for place, value in found.items():
            assert bare(value).dtype == wanted[place].dtype
            torch.testing.assert_close(bare(value), wanted[place], rtol=0, atol=0, equal_nan=True)
    assert in_memory(data)
    assert 0 < data.nbytes < 1000


def paths(sizes: list[int]) -> GraphDataset:
    """Paths, whose nodes are of one class."""
    return dataset_from_networkx([nx.path_graph(n) for n in sizes])


CONFIG = PretrainConfig(max_steps=6, batch_size=4, learning_rate=1e-2, warmup_steps=1, log_steps=1)


def run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[dict[str, torch.Tensor], list[Counts]]:
    """Weights after a few updates on the pretend device, and the counts of each update."""
    with pretending() as cuda, monkeypatch.context() as patch:
        updates = count_pretraining(cuda, patch)
        trainer = Pretrainer(tiny_policy(), paths([2, 3, 4, 3, 2, 4]), CONFIG, folder)
        trainer.train()
        return {name: bare(value).clone() for name, value in trainer.policy.state_dict().items()}, updates


def test_a_run_has_the_same_bits_where_its_set_is_kept_on_the_device(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    kept, counts = run(tmp_path / "kept", monkeypatch)
    monkeypatch.setattr(module, "MOST_BYTES", 0)
    sent, others = run(tmp_path / "sent", monkeypatch)
    assert all(torch.equal(kept[name], sent[name]) for name in sent)
    assert (counts[-1].waits, counts[-1].blocking_copies) == (others[-1].waits, 0), str(counts[-1])


def test_a_batch_of_a_set_on_the_device_is_not_made_by_the_host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made: list[torch.device] = []
    batch = PackedGraphs.batch

    def watched(graphs: PackedGraphs, rows: Any) -> Any:
        found = batch(graphs, rows)
        made.append(found.edges.device)
        return found

    monkeypatch.setattr(PackedGraphs, "batch", watched)
    run(tmp_path, monkeypatch)
    assert made == [torch.device("cpu")] * 2 + [CUDA] * CONFIG.max_steps  # six graphs are checked in two batches


def test_what_stays_where_it_is() -> None:
    class Listed:
        """A set of one's own, which cannot be moved."""

        sizes = torch.ones(2)

        def __len__(self) -> int:
            return 2

        def batch(self, rows: torch.Tensor) -> torch.Tensor:
            return rows

    assert data_on_device(molecules(), None, torch.device("cpu"), 2) is None
    assert data_on_device(Listed(), None, CUDA, 2) is None


@pytest.mark.parametrize("wrong", ["nodes", "pairs"])
def test_every_sample_is_checked_before_the_first_update(wrong: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    data = paths([3] * 11)
    getattr(data.graphs, wrong)[-1] = 9
    with pretending():
        monkeypatch.setattr(pretrain, "accelerator", accelerator)
        with pytest.raises(ValueError, match=r"class in graphs: 9, expected 0 to"):
            Pretrainer(tiny_policy(), data, CONFIG, tmp_path)
