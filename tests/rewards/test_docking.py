"""Docking, with a Vina that only remembers what it was told."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from discrete_grpo.rewards.docking import Docking
from discrete_grpo.rewards.identity import reward_identity


class FakeVina:
    """Scores a ligand by its number of atoms."""

    made: list[FakeVina] = []  # noqa: RUF012

    def __init__(self, **options: Any) -> None:
        self.options, self.told = options, dict[str, Any]()
        self.made.append(self)

    def set_receptor(self, path: str) -> None:
        self.told["receptor"] = path

    def compute_vina_maps(self, *, center: list[float], box_size: list[float]) -> None:
        self.told |= {"center": center, "box_size": box_size}

    def set_ligand_from_string(self, text: str) -> None:
        self.ligand = text

    def dock(self, **options: Any) -> None:
        self.told |= options

    def energies(self, *, n_poses: int) -> list[list[float]]:
        return [[-float(self.ligand), 0.0]]


class FakeMeeko:
    __version__ = "0.6"

    class MoleculePreparation:
        def prepare(self, mol: Any) -> list[Any]:
            assert mol.GetNumConformers() == 1
            return [mol]

    class PDBQTWriterLegacy:
        @staticmethod
        def write_string(mol: Any) -> tuple[str, bool, str]:
            return str(mol.GetNumAtoms()), mol.GetNumAtoms() < 20, "too large"


@pytest.fixture
def receptor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    FakeVina.made.clear()
    monkeypatch.setitem(sys.modules, "vina", SimpleNamespace(Vina=FakeVina, __version__="1.2.5"))
    monkeypatch.setitem(sys.modules, "meeko", FakeMeeko)
    (tmp_path / "parp1.pdbqt").write_text("ATOM")
    return str(tmp_path / "parp1.pdbqt")


def test_the_best_energy_with_its_sign_turned(receptor: str) -> None:
    reward = Docking(receptor, (1.0, 2.0, 3.0), (20.0, 21.0, 22.0), exhaustiveness=4, seed=7, cpu=2)
    assert reward(["CCO", None, "C.C", "C"]) == [9.0, 0.0, 0.0, 5.0]  # with hydrogens
    (engine,) = FakeVina.made
    assert engine.options == {"sf_name": "vina", "cpu": 2, "seed": 7, "verbosity": 0}
    wanted = {"receptor": receptor, "center": [1.0, 2.0, 3.0], "box_size": [20.0, 21.0, 22.0], "exhaustiveness": 4, "n_poses": 1}
    assert engine.told == wanted
    assert reward.name == "docking(parp1)"
    with pytest.raises(ValueError, match="meeko: too large"):
        reward(["CCCCCCCC"])


def test_every_setting_is_part_of_the_identity(receptor: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"receptor": receptor, "center": (1.0, 2.0, 3.0), "box_size": (20.0, 20.0, 20.0)}
    (tmp_path / "copy.pdbqt").write_text("ATOM")
    (tmp_path / "other.pdbqt").write_text("HETATM")
    base = reward_identity(Docking(**settings))  # type: ignore[arg-type]
    changes: list[dict[str, Any]] = [
        {"seed": 1},
        {"exhaustiveness": 1},
        {"n_poses": 2},
        {"center": (0.0, 0.0, 0.0)},
        {"box_size": (9.0, 9.0, 9.0)},
    ]
    changes += [{"receptor": str(tmp_path / "other.pdbqt")}]
    found = [reward_identity(Docking(**(settings | change))) for change in changes]
    assert len({base, *found}) == 1 + len(changes)
    for same in ({"receptor": str(tmp_path / "copy.pdbqt")}, {"cpu": 4}):
        assert reward_identity(Docking(**(settings | same))) == base
    monkeypatch.setattr(FakeMeeko, "__version__", "0.7")
    assert reward_identity(Docking(**settings)) != base  # type: ignore[arg-type]


def test_bad_arguments_fail_when_made(receptor: str) -> None:
    good: dict[str, Any] = {"receptor": receptor, "center": (0.0, 0.0, 0.0), "box_size": (9.0, 9.0, 9.0)}
    wrong = {
        "center": (0.0, float("nan"), 0.0),
        "box_size": (9.0, 0.0, 9.0),
        "seed": 0,
        "exhaustiveness": 0,
        "n_poses": 0,
        "cpu": 0,
        "receptor": "no.pdbqt",
    }
    for name, value in wrong.items():
        with pytest.raises(ValueError, match=f"^{name}: "):
            Docking(**(good | {name: value}))
    for name in ("center", "box_size"):
        for given in (5, None, "123", ("a", "b", "c"), (1.0, 2.0)):
            with pytest.raises(ValueError, match=rf"^{name}: .*, expected three finite numbers"):
                Docking(**(good | {name: given}))


def test_a_receptor_may_be_a_path(receptor: str) -> None:
    box = ((0.0, 0.0, 0.0), (9.0, 9.0, 9.0))
    path: Any = Path(receptor)
    made = Docking(path, *box)
    assert (made, made.name) == (Docking(receptor, *box), "docking(parp1)")
    assert reward_identity(made) == reward_identity(Docking(receptor, *box))
    number: Any = 5
    with pytest.raises(ValueError, match=r"^receptor: 5, expected a PDBQT file$"):
        Docking(number, *box)


def test_a_missing_package_is_named(receptor: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vina", None)
    with pytest.raises(ImportError, match=r"docking: needs vina, .* pip install 'discrete-grpo\[docking\]'"):
        Docking(receptor, (0.0, 0.0, 0.0), (9.0, 9.0, 9.0))(["C"])


def test_what_a_package_needs_itself_is_named(receptor: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "meeko.py").write_text("import a_package_of_meeko\n")
    monkeypatch.delitem(sys.modules, "meeko")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ImportError, match="needs a_package_of_meeko, without which meeko does not work"):
        _ = Docking(receptor, (0.0, 0.0, 0.0), (9.0, 9.0, 9.0)).settings
