"""Input that is odd but plausible, for every kind of samples: told in one line, or read as it was meant."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import networkx as nx
import pytest
import torch

import discrete_grpo as dg
from discrete_grpo.cli.__main__ import main
from discrete_grpo.cli.parser import parse
from discrete_grpo.datasets.reading import read_smiles
from discrete_grpo.datasets.scored import read_scored
from discrete_grpo.datasets.spatial import load_spatial
from discrete_grpo.datasets.text import read_lines
from discrete_grpo.datasets.values import file_of_values
from discrete_grpo.domains.spatial_files import from_sdf
from discrete_grpo.domains.spatial_molecules import smiles_of
from discrete_grpo.domains.tokenizer import SMILES, Tokenizer
from discrete_grpo.models.encoder import EncoderSizes
from discrete_grpo.recipes.conditions import read_columns
from discrete_grpo.recipes.pretraining.digits import PretrainDigitsRecipe, run_pretrain_digits
from discrete_grpo.recipes.pretraining.smiles import smiles_policy
from discrete_grpo.recipes.pretraining.spatial import split_molecules
from discrete_grpo.recipes.pretraining.text import PretrainTextRecipe, split_lines
from discrete_grpo.recipes.search import SearchRecipe, run_search
from discrete_grpo.rewards.digraphs import dag_valid
from discrete_grpo.rewards.molecules import qed
from discrete_grpo.rewards.spatial import atom_stability


def test_a_quote_that_is_left_open_is_told_and_swallows_no_rows(tmp_path: Path) -> None:
    path = tmp_path / "open.csv"
    path.write_text("smiles,score\n" + "CC,1\n" * 100 + '"CCO,5\n' + "CCC,2\n" * 300)
    with pytest.raises(ValueError, match=r"line 402 ends a cell of \d+ lines, expected one molecule; is a quote left open above\?"):
        read_smiles(path)
    with pytest.raises(ValueError, match=r"^data: line 402 of .* ends a sample of several lines"):
        read_scored(path, "score")
    path.write_text("smiles,score\n" + "CC,1\n" * 100 + '"CCO,5\n' + "CCC,2\n" * 2)  # near the end, too
    with pytest.raises(ValueError, match="line 104 ends a cell of 3 lines"):
        read_smiles(path)
    path.write_text("smiles\n" + "CC\n" * 100 + '"CCO\n' + "CCC\n" * 3)
    with pytest.raises(ValueError, match="line 105 ends a cell of 4 lines"):
        read_smiles(path)
    path.write_text("smiles,score,note\nCC,1,a\n" + 'CCO,5,"b\n' + "CCC,2,c\n" * 30)  # in a column that is not read
    with pytest.raises(ValueError, match=r"^path: .* line 33 ends a cell of 31 lines; is a quote left open above\?"):
        read_smiles(path)
    with pytest.raises(ValueError, match=r"^data: .* line 33 ends a cell of 31 lines; is a quote left open above\?"):
        read_scored(path, "score")
    path.write_text('smiles,score,note\nCC,1,"two\nlines"\nCCC,2,\n')  # a note may have several
    assert read_scored(path, "score").scores == (1.0, 2.0)


def test_sizes_of_a_policy_of_images_are_checked_before_anything_is_trained(tmp_path: Path) -> None:
    for options, said in (
        ({"width": 63}, "width: 63"),
        ({"codes": 1}, "codes: 1, expected 2 to 242"),
        ({"dropout": 2.0}, "dropout: 2"),
    ):
        with pytest.raises(ValueError, match=f"^{said}"):
            run_pretrain_digits(PretrainDigitsRecipe(output_dir=str(tmp_path / "run"), **options))
        assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("options", [{"block_size": 20, "long_lines": "split"}, {"num_lines": 5}])
def test_held_out_sentences_fit_the_policy(options: dict[str, Any]) -> None:
    recipe = PretrainTextRecipe(**({"num_lines": 300} | options))
    data, held = split_lines(recipe, 100)
    longest = recipe.block_size or int(data.sizes.max())
    assert all(data.tokenizer.knows(line) and len(data.tokenizer.encode(line)) <= longest for line in held)
    assert held or recipe.num_lines == 5


def test_a_policy_that_always_had_a_label_asks_for_one() -> None:
    with pytest.raises(ValueError, match=r"label: None, expected one, as the policy was trained with one always"):
        dg.sample("digits", 2)
    with pytest.raises(ValueError, match="label: None"):
        dg.sample("digits", 2, columns=[{"label": None}])


@pytest.mark.parametrize("text", ["1e-4", "3e2", "1_0E5", "1.5e3", "-1e4", "+2.5e-3"])
def test_texts_that_look_like_numbers_are_read_again(text: str, tmp_path: Path) -> None:
    _, written = parse("pretrain-text", [f"--output_dir={text}", f"--data_licence={text}"])
    (tmp_path / "config.yaml").write_text(written)
    again, same = parse("pretrain-text", [f"--config={tmp_path / 'config.yaml'}"])
    assert (again.output_dir, again.data_licence, same) == (text, text, written)


def test_rewards_for_another_kind_are_refused_in_every_view(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="reward: dag_valid is for directed graphs"):
        dg.train("planar-16", dag_valid, rewards_see="networkx", output_dir=tmp_path / "a")
    with pytest.raises(ValueError, match="reward: atom_stability is for molecules in space"):
        dg.train("qm9-3d", atom_stability, rewards_see="smiles", output_dir=tmp_path / "b")
    short: dict[str, Any] = {"rounds": 0, "population": 1, "children": 1, "num_steps": 2}
    with pytest.raises(ValueError, match="reward: dag_valid is for directed graphs"):
        run_search(
            SearchRecipe(policy="planar-16", reward=dag_valid, rewards_see="networkx", output_dir=str(tmp_path / "c"), **short)
        )


def test_a_data_set_of_pyg_is_a_list_and_one_graph_is_not() -> None:
    from torch_geometric.data import Data, InMemoryDataset

    class Few(InMemoryDataset):  # type: ignore[misc]
        def __init__(self, graphs: list[Data]) -> None:
            super().__init__()
            self.data, self.slices = self.collate(graphs)

    path = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
    graphs = [Data(edge_index=path, num_nodes=3), Data(edge_index=path, num_nodes=4)]
    assert file_of_values("graphs", Few(graphs)) == file_of_values("graphs", graphs)
    for one in (graphs[0], nx.path_graph(3)):
        with pytest.raises(ValueError, match="expected a list"):
            file_of_values("graphs", one)


def test_lines_end_where_pretraining_ends_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "three.txt"
    path.write_text("one\u2028two\nthree\x0cfour\r\nfive\n", encoding="utf-8")
    assert dg.evaluate(str(path), kind="text")["num_samples"] == len(read_lines(path)) == 3
    (tmp_path / "returns.txt").write_bytes(b"ab\rc")
    assert [text for _, text in read_lines(tmp_path / "returns.txt")] == ["ab", "c"]


def test_texts_of_images_are_measured(tmp_path: Path) -> None:
    drawn = dg.sample("digits", 2, columns=[{"label": 1}])
    assert dg.evaluate([str(image) for image in drawn], kind="images") == dg.evaluate(drawn, kind="images")


def test_endings_of_tables_are_read_in_any_case(tmp_path: Path) -> None:
    images = tmp_path / "IMAGES.CSV"
    images.write_text("image,label\n1x2:00ff,3\n")
    assert dg.evaluate(str(images), kind="images")["valid"] == 1
    (tmp_path / "CONDITIONS.CSV").write_text("MolLogP\n2.5\n")
    with pytest.raises(ValueError, match="is a table, expected a file of JSON lines"):
        read_columns(str(tmp_path / "CONDITIONS.CSV"))


def test_what_is_out_of_its_range_is_told_by_its_own_name(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for command, option in (
        ("pretrain-text", "mask_rate=2"),
        ("pretrain-spatial", "conformer_seed=-1"),
        ("pretrain-digits", "codes=300"),
    ):
        assert main([command, f"--{option}", f"--output_dir={tmp_path / 'run'}"]) == 2
        name, value = option.split("=")
        assert f"{name}: {value}" in capsys.readouterr().err


def test_texts_of_molecules_in_space_are_training_data() -> None:
    molecules = [m for m in dg.sample("qm9-3d", 4, options=dg.SamplerOptions(num_steps=2)) if m is not None]
    ending, written = file_of_values("spatial", [str(m) for m in molecules])
    assert ending == ".sdf"
    assert [smiles_of(m) for m in from_sdf(written.decode())] == [smiles_of(m) for m in molecules]
    with pytest.raises(ValueError, match=r"^data: entry 1: "):
        file_of_values("spatial", [str(molecules[0]), "no molecule |"])


def test_drawings_are_no_positions_in_space(tmp_path: Path) -> None:
    from rdkit import Chem
    from rdkit.Chem import rdDepictor, rdDistGeom

    mol = Chem.AddHs(Chem.MolFromSmiles("CCO"))
    rdDepictor.Compute2DCoords(mol)
    flat = Chem.MolToMolBlock(mol)
    rdDistGeom.EmbedMolecule(mol, randomSeed=1)
    (tmp_path / "mixed.sdf").write_text(f"{flat}$$$$\n{Chem.MolToMolBlock(mol)}$$$$\n")
    found = load_spatial(tmp_path / "mixed.sdf", max_broken=0.5)
    assert list(found.broken) == [(0, "a drawing (its second line says 2D), expected positions in space")]
    assert len(found) == 1


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "two.csv"
    path.write_text("smiles,score,score\nCC,1,2\n")
    with pytest.raises(ValueError, match=r"^score_column: 'score' is the name of several columns of "):
        read_scored(path, "score")


STEPS: Any = {"num_steps": 3}
TASKS: Any = [qed]
NAME: Any = "qed"
NOTHING: Any = None


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: dg.train("qm9-small", qed, output_dir=""), "output_dir: '', expected the name of a folder to make"),
        (lambda: dg.pretrain(dg.PretrainRecipe(output_dir=" ")), "output_dir: ' ', expected the name of a folder to make"),
        (lambda: dg.optimise("smiles-zinc", qed, output_dir=""), "output_dir: '', expected the name of a folder to make"),
        (lambda: dg.benchmark("pmo", tasks=["qed"], output_dir=NOTHING), "output_dir: None, expected the name of a folder to make"),
        (
            lambda: dg.benchmark("pmo", tasks=TASKS),
            "expected the name of a task or a Task",
        ),
        (
            lambda: dg.sample("qm9-small", 1, num_steps=8),
            "num_steps: a field of SamplerOptions, expected it as options=SamplerOptions(num_steps=...)",
        ),
        (lambda: dg.sample("qm9-small", 1, sampling_temperature=0.5), "expected it as options=SamplerOptions(temperature=...)"),
        (lambda: dg.sample("qm9-small", 1, sead=8), "sead: unknown option; did you mean 'seed'?"),
        (lambda: dg.sample("qm9-small", 1, random_seed=8), "random_seed: unknown option; did you mean 'seed'?"),
        (
            lambda: dg.train("qm9-small", qed, output_dir="x", callbacks=[print]),
            "callbacks: unknown option; did you mean 'on_update'?",
        ),
        (
            lambda: dg.train("qm9-small", qed, output_dir="x", eval_steps=10),
            "eval_steps: unknown option; training is evaluated before and after, pretraining at every checkpoint, "
            "so there is no such setting",
        ),
        (
            lambda: dg.PretrainRecipe(network=dg.NetworkSizes(heads=1, width=64.0)),  # type: ignore[arg-type]
            "network.width: 64.0, expected a whole number",
        ),
        (lambda: dg.PretrainRecipe(network=STEPS), "network: a dict, expected NetworkSizes"),
        (
            lambda: dg.PretrainGraphsRecipe(network=dg.NetworkSizes(layers=2.5)),  # type: ignore[arg-type]
            "network.layers: 2.5, expected a whole number",
        ),
        (
            lambda: dg.PretrainTextRecipe(network=EncoderSizes(layers=2.5)),  # type: ignore[arg-type]
            "network.layers: 2.5, expected a whole number",
        ),
        (
            lambda: smiles_policy(Tokenizer(("C",), SMILES), max_length=9, heads=1, width=64.0),  # type: ignore[arg-type]
            "width: 64.0, expected a whole number",
        ),
        (
            lambda: split_molecules(dg.PretrainSpatialRecipe(data="none.smi", cache_dir="/dev/null/x")),
            "cache_dir: /dev/null/x cannot be made (Not a directory), expected a folder to write in",
        ),
        (lambda: dg.sample("qm9-small", 1, options=STEPS), "options: {'num_steps': 3}, expected SamplerOptions"),
        (lambda: dg.load_policy("qm9-small", STEPS), "options: {'num_steps': 3}, expected SamplerOptions"),
        (
            lambda: dg.GRPOTrainer(dg.load_policy("qm9-small"), qed, STEPS),
            "config: {'num_steps': 3}, expected a GRPOConfig",
        ),
        (lambda: dg.GRPOTrainer(dg.load_policy("qm9-small"), NAME), "reward_funcs: 'qed', expected a function"),
        (
            lambda: dg.optimise("smiles-zinc", qed, output_dir="x", settings=TASKS),
            "expected a mapping of names to values",
        ),
        (lambda: qed("CCO"), "samples: 'CCO', expected a list of SMILES, such as ['CCO']"),
    ],
)
def test_arguments_of_another_type_are_told_in_one_line(
    call: Callable[[], Any], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=re.escape(said)):
        call()
    assert not any(tmp_path.iterdir())
