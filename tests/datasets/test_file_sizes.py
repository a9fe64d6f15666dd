"""Files that promise or unpack to more than they should: refused before the memory is taken."""

from __future__ import annotations

import gzip
import io
import struct
import tracemalloc
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch

from discrete_grpo.cli import main
from discrete_grpo.datasets.arrays import read_arrays
from discrete_grpo.datasets.graph_splits import read_npz
from discrete_grpo.datasets.molecules import MAX_ATOMS, dataset_from_smiles, load_molecules
from discrete_grpo.datasets.reading import read_smiles
from discrete_grpo.datasets.smiles import load_smiles
from discrete_grpo.datasets.synthetic_graphs import dataset_from_networkx
from discrete_grpo.datasets.text import read_lines
from discrete_grpo.domains.graph6 import graphs_to_batch
from discrete_grpo.domains.graphs import GraphBatch, PackedGraphs
from discrete_grpo.domains.molecules import encode
from discrete_grpo.metrics.graphs import read_graphs
from discrete_grpo.recipes.evaluate import evaluate_file
from discrete_grpo.recipes.families import KINDS, FileOptions

for _make in KINDS.values():  # imports its modules, which is not what is measured here
    _make({})


def evaluated(path: str, max_bytes: int) -> dict[str, float]:
    """The numbers of a file of samples, as other readers are called."""
    return evaluate_file(path, FileOptions(max_bytes=max_bytes))


READERS = [
    (read_smiles, "a.smi.gz"),
    (read_smiles, "a.csv.gz"),
    (load_molecules, "a.smi.gz"),
    (load_smiles, "a.tsv.gz"),
    (read_lines, "a.txt.gz"),
    (read_graphs, "a.g6.gz"),
    (evaluated, "a.txt.gz"),
]


@pytest.fixture
def memory() -> Iterator[Callable[[], int]]:
    """A function that tells the largest memory taken so far in the test, in bytes."""
    tracemalloc.start()
    yield lambda: tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()


@pytest.mark.parametrize("line", [b"CCO\n", b"C", b"\n"])
@pytest.mark.parametrize(("read", "name"), READERS)
def test_what_a_gzipped_text_may_unpack_to(
    read: Callable[..., Any], name: str, line: bytes, tmp_path: Path, memory: Callable[[], int]
) -> None:
    path = tmp_path / name
    path.write_bytes(gzip.compress(line * (60_000_000 // len(line)), 1))
    tracemalloc.reset_peak()
    with pytest.raises(ValueError, match="unpacks to more than max_bytes, 1,000 bytes") as caught:
        read(str(path), max_bytes=1000)
    assert "\n" not in str(caught.value)
    assert memory() < 4_000_000


def test_a_line_without_an_end_is_refused(tmp_path: Path, memory: Callable[[], int]) -> None:
    (tmp_path / "a.smi.gz").write_bytes(gzip.compress(b"C" * 60_000_000, 1))
    tracemalloc.reset_peak()
    with pytest.raises(ValueError, match="a line of more than 16,777,216 bytes"):
        read_smiles(tmp_path / "a.smi.gz")
    assert memory() < 50_000_000


def test_the_commands_take_the_limit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, out = tmp_path / "a.smi.gz", tmp_path / "run"
    path.write_bytes(gzip.compress(b"CCO\n" * 1000))
    for command in (["pretrain"], ["pretrain-smiles"], ["pretrain-text"], ["judge"]):
        assert main([*command, f"--data={path}", "--max_bytes=1000", f"--output_dir={out}"]) == 2
        assert "unpacks to more than max_bytes, 1,000 bytes" in capsys.readouterr().err
    assert main(["evaluate", str(path), "--max_bytes=1000"]) == 2
    assert "unpacks to more than max_bytes, 1,000 bytes" in capsys.readouterr().err


# -- arrays


def npz(path: Path, **arrays: bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in arrays.items():
            archive.writestr(f"{name}.npy", content)
    return path


def npy(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def promising(shape: tuple[int, ...]) -> bytes:
    """An npy header without the array that it promises."""
    header = f"{{'descr': '<i8', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode()


@pytest.mark.parametrize("shape", [(10**12,), (-1,), (10**6, 10**6), (1,)])
def test_a_header_that_promises_too_much(shape: tuple[int, ...], tmp_path: Path, memory: Callable[[], int]) -> None:
    path = npz(tmp_path / "a.npz", train_num_nodes=promising(shape))
    tracemalloc.reset_peak()
    with pytest.raises(ValueError, match=r"train_num_nodes\.npy: its header promises"):
        read_arrays(path)
    with pytest.raises(ValueError, match=r"data: .*a\.npz cannot be read .*promises"):
        read_npz(path)
    assert memory() < 4_000_000


def test_arrays_that_unpack_to_too_much(tmp_path: Path, memory: Callable[[], int]) -> None:
    path = npz(tmp_path / "a.npz", a=npy(np.zeros(10)), b=npy(np.zeros(10**7)))
    tracemalloc.reset_peak()
    with pytest.raises(
        ValueError, match=r"b.npy: the arrays hold 80,000,080 bytes or more, expected at most 1,000,000 \(max_bytes\)"
    ):
        read_arrays(path, 10**6)
    assert memory() < 4_000_000
    assert {name: len(array) for name, array in read_arrays(path).items()} == {"a": 10, "b": 10**7}


def splits(path: Path, sizes: list[int], edges: int = 0) -> Path:
    """Three splits of such sizes; the first promises so many edges."""
    arrays: dict[str, bytes] = {}
    for split, number in (("train", edges), ("val", 0), ("test", 0)):
        offsets = np.zeros(len(sizes) + 1, dtype=np.int64)
        offsets[-1] = number
        parts = {"num_nodes": np.array(sizes), "edges": np.zeros((number, 2), dtype=np.int8), "offsets": offsets}
        arrays |= {f"{split}_{name}": npy(array) for name, array in parts.items()}
    return npz(path, **arrays)


@pytest.mark.parametrize(
    ("sizes", "edges", "said"),
    [
        ([4, 10**9], 0, r"train: largest num_nodes: 1000000000, expected at most 10000 \(max_nodes\)"),
        ([10_000] * 6000, 0, r"train: nodes in all: 60000000, expected at most 50000000"),
        ([2], 50_000_001, r"train: edges in all: 50000001, expected at most 50000000"),
        ([-1], 0, r"train: least num_nodes: -1, expected at least 0"),
    ],
)
def test_graphs_that_are_too_large(
    sizes: list[int], edges: int, said: str, tmp_path: Path, memory: Callable[[], int], capsys: pytest.CaptureFixture[str]
) -> None:
    path = splits(tmp_path / "a.npz", sizes, edges)
    tracemalloc.reset_peak()
    with pytest.raises(ValueError, match=said):
        read_npz(path)
    assert memory() < 2 * edges * 2 + 2_000_000  # the arrays themselves and no graph
    for command in (["evaluate", str(path)], ["pretrain-graphs", f"--data={path}", f"--output_dir={tmp_path / 'run'}"]):
        assert main(command) == 2
        assert capsys.readouterr().err.count("\n") == 1


def test_the_limit_of_nodes_can_be_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    path = splits(tmp_path / "a.npz", [11_000])
    assert len(read_npz(path, max_nodes=11_000).train[0]) == 11_000
    (tmp_path / "a.g6").write_text("Bg\nCh\n")
    assert main(["evaluate", "a.g6", "--max_nodes=3"]) == 2
    assert "a.g6 line 2 has 4 nodes, expected at most 3 (max_nodes)" in capsys.readouterr().err
    assert main(["evaluate", "a.g6", "--reference=a.npz"]) == 2
    assert "a.npz, train: largest num_nodes: 11000, expected at most 10000 (max_nodes)" in capsys.readouterr().err
    assert main(["pretrain-graphs", "--data=a.npz", "--max_nodes=10999"]) == 2
    assert "expected at most 10999 (max_nodes)" in capsys.readouterr().err


@pytest.mark.parametrize("line", ["~~~~~~~~", "~~??~~~~", "~B??"])
def test_a_graph6_line_that_promises_too_much(line: str, tmp_path: Path, memory: Callable[[], int]) -> None:
    (tmp_path / "a.g6").write_text(f"Bg\n{line}\n")
    tracemalloc.reset_peak()
    assert read_graphs(tmp_path / "a.g6").broken == ((2, line),)
    assert memory() < 4_000_000


# -- molecules


def test_molecules_that_are_too_large_are_left_out_before_they_are_packed(tmp_path: Path, memory: Callable[[], int]) -> None:
    (tmp_path / "a.smi").write_text(f"CCO\n{'C' * 5000}\nC((\nCN\n{'C' * 5000}\n")
    tracemalloc.reset_peak()
    for _ in range(2):  # as parsed, and from the cache
        data = load_molecules(tmp_path / "a.smi", max_atoms=100, max_broken=0.2, cache_dir=tmp_path / "cache")
        assert (data.smiles, data.num_nodes, data.broken) == (("CCO", "CN"), 3, ((3, "C(("),))
        with pytest.raises(ValueError, match=r"1 of 5 lines that are no molecule"):
            load_molecules(tmp_path / "a.smi", max_atoms=100, max_broken=0.19, cache_dir=tmp_path / "cache")
    assert memory() < 10_000_000  # a packed molecule of 5,000 atoms takes 12.5 MB
    assert load_molecules(tmp_path / "a.smi", max_broken=0.2, cache_dir=tmp_path / "cache").num_nodes == 5000


def test_a_molecule_beyond_all_bounds_is_refused_by_its_line(tmp_path: Path) -> None:
    (tmp_path / "a.smi").write_text(f"CCO\n{'C' * (MAX_ATOMS + 1)}\n")
    with pytest.raises(
        ValueError, match=r"a\.smi' line 2: atoms of the molecule: 10001, expected at most 10000; max_atoms leaves it"
    ):
        load_molecules(tmp_path / "a.smi")


# -- ragged storage


def same(found: GraphBatch, expected: GraphBatch) -> bool:
    return all(torch.equal(getattr(found, name), getattr(expected, name)) for name in ("nodes", "edges", "mask"))


def test_one_large_graph_does_not_pad_the_others() -> None:
    graphs = [nx.path_graph(n) for n in (4, 1, 200, 3, 2, 5)] + [nx.empty_graph(0)]
    data = dataset_from_networkx(graphs)
    assert data.graphs.nodes.numel() == 215
    assert data.graphs.pairs.numel() == 6 + 200 * 199 // 2 + 3 + 1 + 10
    for rows in ([0, 3, 1], [2, 5], [1], [6, 4]):
        assert same(data.batch(rows), graphs_to_batch([graphs[k] for k in rows]))
        assert same(data.graphs.index(rows).batch(range(len(rows))), graphs_to_batch([graphs[k] for k in rows]))
    assert same(data.batch(slice(0, 2)), graphs_to_batch(graphs[:2]))
    assert data.batch([]).edges.shape == data.graphs.index([]).batch([]).edges.shape == (0, 0, 0)


def test_molecules_of_all_sizes_come_back_from_their_bytes() -> None:
    smiles = ["CCO", "C", "c1ccccc1C" + "C" * 40, "N#CC=O", "O"]
    data = dataset_from_smiles(smiles)
    for rows in ([0, 1, 3], [2, 0], [4, 1]):
        assert same(data.batch(rows), encode([smiles[k] for k in rows], data.vocabulary))
        part = data.index(rows)
        assert part.smiles == tuple(data.smiles[k] for k in rows)
        assert same(part.batch(range(len(rows))), data.batch(rows))


def test_lengths_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="graphs: 3 nodes and 2 pairs, expected 3 and 3 by their sizes"):
        PackedGraphs(torch.zeros(3, dtype=torch.uint8), torch.zeros(2, dtype=torch.uint8), torch.tensor([3]))
