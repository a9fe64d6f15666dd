"""Which reward a score belongs to: no edit of a reward is missed, and an unchanged one is known again."""

from __future__ import annotations

import importlib
import json
import os
import re
import sqlite3
import subprocess
import sys
import threading
from collections import defaultdict, deque
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rdkit import Chem

from discrete_grpo.cli import main
from discrete_grpo.datasets.enumeration import load_enumerated
from discrete_grpo.datasets.molecules import statistics
from discrete_grpo.models.graph_transformer import NetworkSizes
from discrete_grpo.recipes.pretraining.diffusion import DiffusionOptions
from discrete_grpo.recipes.pretraining.molecules import molecule_policy
from discrete_grpo.rewards.cache import ScoreCache
from discrete_grpo.rewards.external import ExternalReward
from discrete_grpo.rewards.identity import Unidentified, identify, reward_identity
from discrete_grpo.rewards.ledger import Ledger
from discrete_grpo.rewards.reference import public_rewards
from discrete_grpo.runs.checkpoint import save
from discrete_grpo.runs.recorder import read_samples
from tests import identity_cases
from tests.identity_cases import CASES

ROOT = Path(__file__).parents[2]


def in_process(*words: str, seed: int = 0) -> Any:
    """What a fresh Python process prints, as JSON."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": str(seed)}
    done = subprocess.run([sys.executable, "-B", *words], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


CASES_AND_BUNDLED = """
import contextlib, io, json, sys
from pathlib import Path
from tests.identity_cases import main
with contextlib.redirect_stdout(io.StringIO()) as said:
    main(Path(sys.argv[1]), Path(sys.argv[2]))
BUNDLED
print(json.dumps([json.loads(said.getvalue()), found]))
"""
"""The edited rewards first, then those of the package: one process of each seed, as most of its time is that of the imports."""


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> list[list[dict[str, Any]]]:
    """Results of three processes that ran in turn, each with another hash seed, and all with one cache on disk.

    The outcomes of all cases, before their edit, after it, and once more; and the identity of every bundled reward.
    """
    root, program = tmp_path_factory.mktemp("edits"), CASES_AND_BUNDLED.replace("BUNDLED", BUNDLED)
    found = []
    for seed, edited in enumerate((False, True, True)):
        identity_cases.write(root, edited)
        found.append(in_process("-c", program, str(root), str(root / "scores.sqlite"), seed=seed))
    return found


# -- edits


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_no_stale_score_is_served_after_an_edit(processes: list[list[dict[str, Any]]], name: str) -> None:
    before, after, again = (outcomes[name] for outcomes, _ in processes)
    assert before["true"] != after["true"], "the edit does nothing"
    assert before["served"] == before["true"]
    assert after["served"] == again["served"] == after["true"]
    assert None not in (before["identity"], after["identity"])  # it was cached, and not merely scored again
    assert before["identity"] != after["identity"]
    assert after["identity"] == again["identity"]  # in another process, with another order of sets
    assert after["identity"] == after["later"]  # what it keeps for itself when it is called is no part of it


def test_there_are_more_edits_than_kinds_that_were_missed() -> None:
    assert len(CASES) >= 27


REWARD = """
import pathlib
K = 1.0
def constant(samples, **columns):
    if pathlib.Path('sto' + 'p').exists() and len(samples) <= 16:
        raise OSError('no licence')
    return [0.0 if s is None else K for s in samples]
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with a small policy and a module of rewards."""
    stats = statistics(load_enumerated(4))
    sizes = NetworkSizes(layers=1, heads=2, width=8, edge_width=4, global_width=4, walk_length=2)
    save(tmp_path / "tiny", molecule_policy(stats, sizes, DiffusionOptions(num_steps=5)), metadata={"statistics": stats.to_json()})
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    write_rewards(tmp_path, "K = 1.0")
    return tmp_path


def write_rewards(folder: Path, constant: str) -> None:
    """Write the module of rewards, for the next import of it."""
    (folder / "edited_rewards.py").write_text(REWARD.replace("K = 1.0", constant))
    sys.modules.pop("edited_rewards", None)
    importlib.invalidate_caches()


def train(out: str, *options: str) -> int:
    settings = ["--grpo.num_generations=4", "--grpo.generation_batch_size=16", "--grpo.max_steps=2", "--evaluation_samples=24"]
    return main(["train", "--policy=tiny", "--reward=edited_rewards.constant", f"--output_dir={out}", *settings, *options])


def rewards(table: str) -> set[float]:
    """Of the valid samples."""
    found = read_samples(Path(table))
    return {float(value) for value, sample in zip(found["reward"], found["sample"], strict=True) if sample}


def test_runs_that_share_a_cache_see_an_edit(folder: Path) -> None:
    shared = "--reward_cache=scores.sqlite"
    assert train("first", shared) == 0
    assert rewards("first/evaluation_after.csv.gz") == {1.0}
    write_rewards(folder, "K = 2.0")
    assert train("second", shared) == 0
    assert rewards("second/evaluation_before.csv.gz") == rewards("second/evaluation_after.csv.gz") == {2.0}


def test_a_script_that_names_its_cache_finds_its_scores_again(folder: Path) -> None:
    write_rewards(folder, "K = 1.0; CACHE = 'scores.sqlite'")
    reward = importlib.import_module("edited_rewards").constant
    asked: list[str] = []
    for sample in ("C", "CC"):
        ledger = Ledger(cache=ScoreCache("scores.sqlite"))
        assert ledger.score([reward], [sample]).tolist() == [[1.0]]
        asked.append(str(ledger._identity("constant", reward)))
        ledger.close()
    assert asked[0] == asked[1] != identify(reward)


def test_a_resumed_run_sees_an_edit(folder: Path) -> None:
    (folder / "stop").touch()
    assert train("run") == 2
    assert rewards("run/evaluation_before.csv.gz") == {1.0}
    write_rewards(folder, "K = 2.0")
    (folder / "stop").unlink()
    assert main(["resume", "run"]) == 0
    assert rewards("run/evaluation_after.csv.gz") == {2.0}


def test_a_file_edited_while_a_process_runs_gives_it_an_identity_of_its_own(folder: Path) -> None:
    def loaded() -> Any:
        return importlib.import_module("edited_rewards").constant

    first = loaded()
    before = identify(first)
    text = REWARD.replace("0.0 if", "5.0 if").replace("K = 1.0", "K = 2.0")
    (folder / "edited_rewards.py").write_text(text)
    mixed = identify(first)
    sys.modules.pop("edited_rewards")
    importlib.invalidate_caches()
    after = identify(loaded())
    assert len({before, mixed, after}) == 3


def test_a_global_that_is_set_from_elsewhere_counts(folder: Path) -> None:
    module: Any = importlib.import_module("edited_rewards")
    before = identify(module.constant)
    module.K = 3.0
    assert identify(module.constant) != before


# -- the same reward in another process

BUNDLED = """
import functools, json
from discrete_grpo.rewards.reference import public_rewards
from discrete_grpo.rewards import combine, external, molecules, pool
from discrete_grpo.rewards.identity import reward_identity
from discrete_grpo.rewards.pool_worker import find, resolve
from discrete_grpo.domains.spatial_molecules import SpatialMolecule
# the modules whose rewards hold no process or memory
PLAIN = ("components", "conditions", "digraphs", "graphs", "images", "judge", "molecules", "spatial", "transforms")
carbon = SpatialMolecule(("C", "C"), (0, 0), ((0, 1, 1),), ((0, 0, 0), (1.5, 0, 0)))
arguments = {
    "Similarity": {"target": "CC"}, "Substructure": {"smarts": "[OH]"}, "HitsProperty": {"property": "TPSA"},
    "Target": {"property": molecules.qed, "value": 1.0, "scale": 1.0},
    "InRange": {"property": molecules.qed, "low": 0.0, "high": 1.0},
    **{name: {"property": molecules.qed, "low": 0.0, "high": 1.0} for name in ("Sigmoid", "ReverseSigmoid", "DoubleSigmoid")},
    "Descriptor": {"descriptor": "TPSA"}, "CustomAlerts": {"smarts": ["C#C", "N=N"]},
    "MatchCount": {"smarts": "[OH]"}, "ExponentialDecay": {"property": molecules.qed, "k": 1.0},
    "InkAmount": {"value": 0.5}, "ShapeMatch": {"data": "planar-16"}, "SingleMMD": {"data": "planar-16"},
    "ShapeSimilarity": {"reference": carbon}, "OfSmiles": {"reward": molecules.qed},
    "NovelTo": {"reward": molecules.qed, "data": "planar-16"},
}
made = {
    name: resolve(known.path, arguments.get(name)) for name, known in public_rewards().items()
    if known.path.split(".")[2] in PLAIN and name != "ModuleReward"  # which needs a module
}
made["sum"] = combine.WeightedSum.of({molecules.qed: 1.0, molecules.logp: 0.5})
made["mean"] = combine.GeometricMean((molecules.qed, molecules.logp))
made["gated"] = combine.Gated(molecules.qed, (molecules.Similarity("CC"),))
made["pool"] = pool.RewardPool("discrete_grpo.rewards.molecules.logp")
made["decorated"] = molecules.molecule_reward(molecules.molecule_properties.qed_score)
made["set"] = functools.partial(molecules.qed, kinds={"a", "b", "c", molecules.qed})
found = {name: reward_identity(reward) for name, reward in made.items()}
"""


@pytest.mark.slow
def test_every_bundled_reward_is_the_same_in_every_process(processes: list[list[dict[str, Any]]]) -> None:
    first, second, third = (identities for _, identities in processes)
    assert first == second == third
    others = {"DiversityContribution", "DiversityFilter", "MeanDistance", "Docking", "ExternalReward", "ModuleReward"}
    others |= {"RewardPool", "WeightedSum", "GeometricMean", "Gated"}
    others |= {"Task", "Classifier", "Regressor", "NearestSimilarity"}  # these have tests of their own
    assert set(public_rewards()) - others <= set(first)
    assert [name for name, identity in first.items() if identity is None] == ["NovelTo"]  # it compares the samples of a batch
    assert first.pop("pool") == first["logp"]
    assert len(set(first.values())) == len(first)


# -- what has no file

NOTEBOOK = """
import threading
from rdkit import Chem
K = 1.0
LOCK = threading.Lock()
PATTERN = Chem.MolFromSmarts("C")
def helper(s): return K
def score(samples, **columns): return [helper(s) for s in samples]
def with_pattern(samples, **columns): return [float(PATTERN.GetNumAtoms()) for s in samples]
def with_lock(samples, **columns): return [float(LOCK.locked()) for s in samples]
"""


def executed(text: str, name: str) -> Any:
    space: dict[str, Any] = {"__name__": "a_notebook"}
    exec(text, space)
    return space[name]


def test_a_function_without_a_file_is_what_it_and_what_it_names_are() -> None:
    same = [identify(executed(NOTEBOOK, "score")) for _ in range(2)]
    assert same[0] == same[1]
    for old, new in (("K = 1.0", "K = 2.0"), ("return K", "return K + 1")):
        assert identify(executed(NOTEBOOK.replace(old, new), "score")) != same[0]
    with pytest.raises(Unidentified, match=r"_thread\.lock"):
        identify(executed(NOTEBOOK, "with_lock"))
    found = [identify(executed(text, "with_pattern")) for text in (NOTEBOOK, NOTEBOOK, NOTEBOOK.replace('"C"', '"N"'))]
    assert found[0] == found[1] != found[2]


@pytest.mark.slow
def test_a_reward_of_the_script_itself_is_its_file(tmp_path: Path) -> None:
    text = "import json\nfrom discrete_grpo.rewards.identity import identify\nTABLE = [lambda s: 1.0]\n"
    text += "def score(samples, **c): return [TABLE[0](s) for s in samples]\nprint(json.dumps(identify(score)))\n"
    found = list[Any]()
    for version in (text, text.replace("1.0", "2.0")):
        (tmp_path / "script.py").write_text(version)
        found.append(in_process(str(tmp_path / "script.py"), seed=len(found)))
    assert found[0] != found[1]


# -- what cannot be identified


class Holds:
    """A reward with a setting."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __call__(self, samples: list[str], **columns: Any) -> list[float]:
        return [0.0] * len(samples)


HOLDING = """
class Holds:
    def __init__(self, value): self.value = value
    def __call__(self, samples, **columns): return [0.0] * len(samples)
def closing_over(value):
    def score(samples, **columns): return [float(value is None)] * len(samples)
    return score
"""
"""In a module without imports: an identity takes longer the more files a module imports, as this one does."""


def test_what_cannot_be_identified_is_named_in_one_line_and_not_kept(tmp_path: Path) -> None:
    ledger, reward = Ledger(cache=ScoreCache(tmp_path / "scores.sqlite")), Holds(threading.Lock())
    with pytest.warns(RuntimeWarning) as said:
        ledger.score([reward], ["C"])
    ledger.score([reward], ["C"])  # said once
    lines = {str(warning.message) for warning in said}
    wanted = "reward Holds: repeats are scored again and no score is kept, since it cannot be identified: "
    wanted += "Holds.value: a _thread.lock cannot be told from others of its kind; an attribute cached_as (a text) would name it"
    assert lines == {wanted}
    with closing(sqlite3.connect(tmp_path / "scores.sqlite")) as file:
        assert file.execute("SELECT COUNT(*) FROM scores").fetchall() == [(0,)]


@pytest.mark.parametrize("name", ["Holds", "closing_over"])
def test_state_is_told_apart_or_refused(
    name: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = tmp_path_factory.mktemp("code")
    (code / f"{name}_of_state.py").write_text(HOLDING)
    monkeypatch.syspath_prepend(str(code))
    make: Callable[[Any], Any] = getattr(importlib.import_module(f"{name}_of_state"), name)

    class Point:
        __slots__ = ("x",)

        def __init__(self, x: float) -> None:
            self.x = x

    class Named(dict[str, float]):
        def __init__(self, name: str) -> None:
            super().__init__(a=1.0)
            self.name = name

    masked = [np.ma.array([1.0, 2.0], mask=mask) for mask in ([False, True], [True, False])]
    layers = [torch.nn.Linear(1, 1, bias=False) for _ in range(2)]
    for layer in layers:
        torch.nn.init.ones_(layer.weight)
    layers[1].register_forward_hook(lambda *arguments: None)
    for model in ("a", "b"):
        (tmp_path / model).mkdir()
        (tmp_path / model / "model.bin").write_text("1")
    values = [
        Point(1.0),
        Point(2.0),
        Named("a"),
        Named("b"),
        *masked,
        *layers,
        np.float64(1.0),
        1.0,
        np.array([None, 1]),
        slice(1),
        slice(2),
    ]
    values += [defaultdict(int), defaultdict(float), deque([1], 1), deque([1], 2), str.upper, str.lower, np.exp, np.log]
    values += [re.compile("a"), re.compile("b")]
    values += [
        tmp_path / "a",
        tmp_path / "b",
        str(tmp_path / "a"),
        torch.float32,
        torch.float64,
        torch.zeros(1, dtype=torch.bfloat16),
    ]
    values += [*map(Chem.MolFromSmiles, ("CC", "CO", "[13CH3]C")), *map(Chem.MolFromSmarts, ("CC", "[CX4]C"))]
    identities = [reward_identity(make(value)) for value in values]
    assert None not in identities
    assert len(set(identities)) == len(values)
    (tmp_path / "a" / "model.bin").write_text("2")
    changed = [reward_identity(make(value)) for value in values]
    assert [k for k, pair in enumerate(zip(identities, changed, strict=True)) if pair[0] != pair[1]] == [23, 25]
    for refused in (threading.Lock(), object(), iter([1]), (x for x in [1]), torch.zeros(1).to_sparse(), sys.stdout):
        with pytest.raises(Unidentified):
            identify(make(refused))


def test_a_large_folder_is_refused(tmp_path: Path) -> None:
    for k in range(1001):
        (tmp_path / str(k)).touch()
    with pytest.raises(Unidentified, match=r"holds more than 1,000 files"):
        identify(Holds(tmp_path))


def test_the_files_that_a_command_names_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("pack").mkdir()
    names = ["run.sh", "weights.bin", "pack/score.py", "pack/helper.py"]
    for name in names:
        Path(name).write_text("from .helper import x\n" if "score" in name else "1")
    Path("run.sh").chmod(0o755)
    command = ["./run.sh", "--weights=weights.bin", "-m", "pack.score"]
    seen = {identify(ExternalReward(command))}
    for name in names:
        Path(name).write_text(Path(name).read_text() + "\n# 2")
        seen.add(identify(ExternalReward(command)))
    assert len(seen) == 1 + len(names)


def test_signs_of_smiles_name_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dot, a slash and single letters are no paths; a longer text that names a folder or a file is one."""
    monkeypatch.chdir(tmp_path)
    for name in ("C", "weights"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.bin").write_text("1")
    signs, named = [Holds([".", "..", "/", "./", "C"]), Holds(Path("weights"))], Holds("weights")

    def one_part(samples: list[Any], **columns: Any) -> list[float]:
        return [0.0 if s is None or "." in s or "/" in s else 1.0 for s in samples]

    before = [reward_identity(reward) for reward in (*signs, named, one_part)]
    for folder in (tmp_path, tmp_path / "C", tmp_path / "weights"):
        (folder / str(10)).write_text("2")  # under a name that this file does not hold: it would count as its source
    after = [reward_identity(reward) for reward in (*signs, named, one_part)]
    assert [a == b for a, b in zip(before, after, strict=True)] == [True, False, False, True]
