"""Checkpoints of MiDi made here: the published layout in miniature, the same prediction as the equations, every misfit named."""

from __future__ import annotations

import json
import os
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from discrete_grpo.domains.fields import centred
from discrete_grpo.importers import import_digress, import_midi
from discrete_grpo.runs.checkpoint import CheckpointError
from tests import midi_oracle as oracle
from tests.imported import digress, lightning, one_line

MODULE = "midi_of_somebody"
DATA: dict[str, Any] = {
    "name": "somebody's molecules",
    "atoms": ["H", "C", "N", "O"],
    "charges": [-1, 0, 1],
    "node_counts": [0, 0, 1, 2, 1],
    "atom_marginal": [5, 3, 1, 1],
    "charge_marginal": [0.01, 0.97, 0.02],
    "bond_marginal": [0.8, 0.15, 0.03, 0.02, 0],
}
SIZES: dict[str, Any] = {"layers": 2, "widths": (8, 6, 5), "heads": 2, "hidden": (7, 9, 11), "mlp": (10, 12, 13, 4)}


def weights(**more: Any) -> dict[str, Tensor]:
    return oracle.random_state((4, 3, 5), **SIZES | more)


@pytest.fixture
def theirs() -> Iterator[types.ModuleType]:
    """Classes by names of theirs, there while a file is written and gone when it is read."""
    module = types.ModuleType(MODULE)
    for name in ("DictConfig", "ListConfig", "AnyNode", "QM9infos"):
        setattr(module, name, type(name, (), {"__module__": MODULE}))
    sys.modules[MODULE] = module
    yield module
    sys.modules.pop(MODULE, None)


def configured(module: Any, value: Any) -> Any:
    """A value as the configuration library stores it."""
    kind = "DictConfig" if isinstance(value, dict) else "ListConfig" if isinstance(value, list) else "AnyNode"
    made = getattr(module, kind)()
    if isinstance(value, dict):
        made._content = {name: configured(module, inner) for name, inner in value.items()}
    elif isinstance(value, list):
        made._content = [configured(module, inner) for inner in value]
    else:
        made._val = value
    return made


def settings(**model: Any) -> dict[str, Any]:
    """The part of a published configuration that counts."""
    nu = {"p": 2.5, "x": 1, "c": 1, "e": 1.5, "y": 1}
    stated = {"type": "discrete", "transition": "marginal", "diffusion_noise_schedule": "cosine", "extra_features": None, "nu": nu}
    return {"model": stated | {"diffusion_steps": 40, "lambda_train": [5, 0.4, 1, 2, 0]} | model, "general": {"gpus": 1}}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "data.json"
    path.write_text(json.dumps(DATA))
    return path


def checkpoint(path: Path, state: dict[str, Tensor], cfg: Any = None, **hyper: Any) -> Path:
    return lightning(path, state, hyper_parameters={"cfg": settings() if cfg is None else cfg, **hyper})


# -- what is read


@pytest.mark.parametrize("wrap", ["lightning", "bare"])
@pytest.mark.parametrize(("variant", "spread"), [("main", "variance"), ("first", "deviation")])
def test_the_published_prediction(tmp_path: Path, data: Path, wrap: str, variant: Any, spread: str) -> None:
    state, path = weights(), tmp_path / "x.ckpt"
    if wrap == "lightning":
        checkpoint(path, state)
    else:
        torch.save(state, path)
    made = import_midi(path, statistics=data, schedule="uniform", variant=variant)
    g, n = torch.Generator().manual_seed(0), 4
    mask = torch.ones(1, n, dtype=torch.bool)
    atom, charge = torch.randint(4, (1, n), generator=g), torch.randint(3, (1, n), generator=g)
    bond = torch.randint(5, (1, n, n), generator=g).triu(1)
    bond = bond + bond.transpose(1, 2)
    positions = centred(torch.randn(1, n, 3, generator=g), mask)
    with torch.no_grad():
        found = made.network({"atom": atom, "charge": charge}, {"bond": bond}, positions, torch.tensor([0.3]), mask)
    one_hot = torch.nn.functional.one_hot
    x = torch.cat([one_hot(atom[0], 4), one_hot(charge[0], 3)], -1).float()
    e = oracle.without_diagonal(one_hot(bond[0], 5).float())
    nodes, edges, moved = oracle.literal_forward(state, x, e, torch.tensor(0.3), positions[0], spread)
    apart = ~torch.eye(n, dtype=torch.bool)
    assert found.positions is not None
    for a, b in (
        (found.nodes["atom"][0], nodes[:, :4]),
        (found.nodes["charge"][0], nodes[:, 4:]),
        (found.edges["bond"][0][apart], edges[apart]),
        (found.positions[0], moved),
    ):
        torch.testing.assert_close(a, b, atol=2e-5, rtol=2e-5)
    assert not made.network.training


def test_what_the_file_states_is_taken(tmp_path: Path, data: Path, theirs: Any) -> None:
    path = checkpoint(tmp_path / "x.ckpt", weights(), configured(theirs, settings()))
    sys.modules.pop(MODULE)
    made = import_midi(path, statistics=data)
    assert made.exponents == {"positions": 2.5, "atom": 1.0, "charge": 1.0, "bond": 1.5}
    assert made.weights == {"positions": 5.0, "atom": 0.4, "charge": 1.0, "bond": 2.0}
    assert (made.diffusion_steps, made.num_steps) == (40, 40)
    assert made.data.atoms == ("H", "C", "N", "O")
    assert made.data.charges == (-1, 0, 1)
    assert made.node_counts == (0.0, 0.0, 0.25, 0.5, 0.25)
    assert made.priors["atom"] == pytest.approx((0.5, 0.3, 0.1, 0.1))
    assert all(sum(prior) == pytest.approx(1) for prior in made.priors.values())
    assert made.taken["exponents"] == ("positions 2.5, atom 1, charge 1, bond 1.5", "file")
    assert made.taken["atoms"] == ("H C N O", "statistics")
    assert made.taken["charges"] == ("-1 0 +1", "statistics")
    assert made.taken["heads"] == ("2", "shapes")
    given = import_midi(path, statistics=data, schedule="uniform", num_steps=7, diffusion_steps=20, checkpoint_layers=True)
    assert set(given.exponents.values()) == {1.0}
    assert (given.diffusion_steps, given.num_steps, given.network.checkpoint_layers) == (20, 7, True)


def test_what_the_file_does_not_state_is_as_published(tmp_path: Path, data: Path) -> None:
    torch.save(weights(), tmp_path / "bare.pt")
    data.write_text(json.dumps(DATA | {"charges": [-1, 0, 2]}))
    made = import_midi(tmp_path / "bare.pt", statistics=data, schedule="adaptive")
    assert made.exponents == {"positions": 2.5, "atom": 1.0, "charge": 1.0, "bond": 1.5}
    assert made.weights == {"positions": 3.0, "atom": 0.4, "charge": 1.0, "bond": 2.0}
    assert (made.diffusion_steps, made.num_steps) == (500, 500)
    assert (made.statistics.charges, made.statistics.position_std) == ((-1, 0, 2), 1.0)  # positions are in Å
    positions = made.policy.positions
    assert positions is not None
    assert positions.weight == 3.0
    assert [field.weight for field in (*made.policy.node_fields, *made.policy.edge_fields)] == [0.4, 1.0, 2.0]


def test_the_noise_is_the_published_one(tmp_path: Path, data: Path) -> None:
    made = import_midi(checkpoint(tmp_path / "x.ckpt", weights()), statistics=data)
    grid = torch.arange(41, dtype=torch.float64) / 40
    for field, exponent in (("atom", 1.0), ("charge", 1.0), ("bond", 1.5)):
        noise = made.noise(field)
        torch.testing.assert_close(noise.schedule.alpha_bar(grid), oracle.literal_alpha_bar(40, exponent), atol=1e-6, rtol=1e-6)
        assert noise.prior == made.priors[field]
        assert noise.num_clean == len(noise.prior)
    kept = oracle.literal_alpha_bar(40, 2.5)
    torch.testing.assert_close(made.position_schedule.alpha_bar(grid), kept**2, atol=1e-6, rtol=1e-6)


def test_stored_data_is_taken(tmp_path: Path, theirs: Any) -> None:
    infos = theirs.QM9infos()
    infos.name, infos.atom_decoder = "qm9", ["H", "C", "N", "O"]
    infos.collapse_charges = torch.tensor([-1, 0, 1], dtype=torch.int32)
    infos.n_nodes, infos.atom_types = torch.tensor([0.0, 0.0, 1.0]), torch.tensor([0.4, 0.3, 0.2, 0.1])
    infos.edge_types, infos.charges_marginals = torch.tensor([0.6, 0.2, 0.1, 0.1, 0.0]), torch.tensor([0.1, 0.8, 0.1])
    path = checkpoint(tmp_path / "x.ckpt", weights(), dataset_infos=infos)
    sys.modules.pop(MODULE)
    made = import_midi(path)
    assert made.data.name == "qm9"
    assert made.data.charges == (-1, 0, 1)
    assert made.priors["charge"] == pytest.approx((0.1, 0.8, 0.1))
    assert made.taken["data"] == ("qm9", "file")


class Evil:
    """Makes a folder when unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.makedirs, (str(self.path), 0o777, True)


def test_nothing_in_a_file_is_executed(tmp_path: Path, data: Path) -> None:
    ran = tmp_path / "ran"
    path = lightning(tmp_path / "x.ckpt", weights(), hyper_parameters={"cfg": settings()}, callbacks=[Evil(ran)])
    assert import_midi(path, statistics=data).num_steps == 40
    assert not ran.exists()
    torch.load(path, weights_only=False)
    assert ran.exists(), "the file would have run, had it been unpickled"


# -- what does not fit


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda s: s.pop("tf_layers.1.self_attn.lin_dist1.bias"), r"tf_layers\.1\.self_attn\.lin_dist1\.bias missing"),
        (lambda s: s.pop("tf_layers.0.self_attn.a.weight"), r"tf_layers\.0\.self_attn\.a\.weight missing"),
        (lambda s: s.update({"tf_layers.0.self_attn.e_add.weight": torch.zeros(2, 2)}), r"self_attn\.e_add\.weight unexpected"),
        (lambda s: s.update({"tf_layers.0.linX2.weight": torch.zeros(3, 3)}), r"linX2\.weight \(3, 3\) for \(8, 7\)"),
        (lambda s: s.update({"mlp_in_X.0.weight": torch.zeros(10, 13)}), r"reads \(13, 5, 1\) numbers .*, expected \(7, 5, 1\)"),
        (lambda s: s["mlp_out_E.2.bias"].fill_(torch.nan), "holds weights that are no finite numbers: mlp_out_E"),
        (lambda s: s.pop("mlp_in_pos.mlp.0.weight"), r"has no mlp_in_pos\.mlp\.0\.weight .*, expected a network of MiDi"),
        (lambda s: s.clear(), "expected a network of MiDi"),
    ],
)
def test_tensors_that_do_not_fit_are_named(tmp_path: Path, data: Path, spoil: Any, said: str) -> None:
    state = weights()
    spoil(state)
    with pytest.raises(CheckpointError, match=said) as error:
        import_midi(checkpoint(tmp_path / "x.ckpt", state), statistics=data)
    one_line(error)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"transition": "uniform"}, "stores model.transition 'uniform', expected marginal: other priors are not known"),
        ({"diffusion_noise_schedule": "custom"}, "stores model.diffusion_noise_schedule 'custom', expected cosine"),
        ({"extra_features": "all"}, "stores model.extra_features 'all', expected None or null or none"),
        ({"type": "continuous"}, "stores model.type 'continuous', expected discrete"),
        ({"nu": {"p": 1, "x": 1, "c": 1}}, "stores model.nu .*, expected numbers above 0 of p, x, c and e"),
        ({"nu": {"p": 1, "x": 0, "c": 1, "e": 1}}, "stores model.nu .*, expected numbers above 0"),
        ({"lambda_train": [1, 2]}, r"stores model.lambda_train \[1, 2\], expected numbers of at least 0"),
        ({"diffusion_steps": "many"}, "stores model.diffusion_steps 'many', expected a number"),
    ],
)
def test_settings_that_are_not_known_are_named(tmp_path: Path, data: Path, change: dict[str, Any], said: str) -> None:
    with pytest.raises(CheckpointError, match=said) as error:
        import_midi(checkpoint(tmp_path / "x.ckpt", weights(), settings(**change)), statistics=data)
    one_line(error)


def test_options_that_do_not_fit_are_named(tmp_path: Path, data: Path) -> None:
    bare = tmp_path / "bare.pt"
    torch.save(weights(), bare)
    wrong: list[tuple[dict[str, Any], str]] = [
        ({}, "statistics: None, and .*bare.pt does not store its data; expected a JSON file with atoms, charges, node_counts"),
        ({"statistics": data}, r"schedule: None, and .*bare.pt stores no exponents \(model.nu\), expected adaptive or uniform"),
        ({"statistics": data, "schedule": "fast"}, "schedule: 'fast', expected one of adaptive, uniform"),
        ({"statistics": data, "variant": "new"}, "variant: 'new', expected one of main, first"),
        ({"statistics": data, "schedule": "uniform", "num_steps": 0}, r"num_steps: 0, expected 1 to 500 \(diffusion_steps\)"),
        ({"statistics": data, "schedule": "uniform", "num_steps": 501}, r"num_steps: 501, expected 1 to 500 \(diffusion_steps\)"),
        (
            {"statistics": data, "schedule": "uniform", "diffusion_steps": 2.5},
            "diffusion_steps: 2.5, expected a whole number, at least 1",
        ),
    ]
    for options, said in wrong:
        with pytest.raises(ValueError, match=said) as error:
            import_midi(bare, **options)
        one_line(error)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"atoms": ["H", "C", "N", "Xx"]}, "expected an element symbol"),
        ({"atoms": ["H", "C", "N", "N+1"]}, r"atoms: 'N\+1', expected elements without charges"),
        ({"atoms": ["H", "C", "N"]}, "atom_marginal: 4 classes, expected 3"),
        ({"atoms": "HCNO"}, "atoms: 'HCNO', expected a list"),
        ({"charges": [-1, 0, float("inf")]}, r"charges: \[-1, 0, inf\], expected whole numbers"),
        ({"charges": [-1, 0, 0]}, r"charges: \(-1, 0, 0\), expected different charges"),
        ({"charges": [-1, 0, 0.5]}, "charges: .*, expected whole numbers"),
        ({"node_counts": [1, 1]}, "expected shares of 0, 1, 2, ... atoms, the first 0"),
        ({"bond_marginal": [1, 1, 1, 1]}, "bond_marginal: 4 classes, expected 5"),
        ({"charge_marginal": [0, 0, 0]}, "charge_marginal: .*, expected shares >= 0 with a positive sum"),
        ({"charge_marginal": [-1, 2, 1]}, "charge_marginal: .*, expected shares >= 0 with a positive sum"),
        ({"charges": [-1, 0, 10]}, r"charges: \(-1, 0, 10\), expected different charges of -9 to 9"),
        ({"charge_marginal": ["a", 1, 1]}, "charge_marginal: a in its list, expected numbers"),
        ({"charge_marginal": [[1, 0], [0, 1]]}, r"charge_marginal: \[1, 0\] in its list, expected numbers"),
        ({"colour": 3}, "colour unknown"),
        ({"charges": [0], "charge_marginal": [1]}, "4 atoms, 1 charges and 5 bonds in .*, expected 7 atoms and charges together"),
    ],
)
def test_statistics_that_do_not_fit_are_named(tmp_path: Path, data: Path, change: dict[str, Any], said: str) -> None:
    data.write_text(json.dumps(DATA | change))
    with pytest.raises(ValueError, match=said) as error:
        import_midi(checkpoint(tmp_path / "x.ckpt", weights()), statistics=data)
    one_line(error)
    data.write_text("[]")
    with pytest.raises(ValueError, match="holds list, expected a dictionary"):
        import_midi(tmp_path / "x.ckpt", statistics=data)


def test_models_of_the_other_kind_are_refused(tmp_path: Path, data: Path) -> None:
    path = lightning(tmp_path / "digress.ckpt", digress()[0])
    with pytest.raises(CheckpointError, match=r"has no mlp_in_pos.*, expected a network of MiDi") as error:
        import_midi(path, statistics=data)
    one_line(error)
    with pytest.raises(CheckpointError, match=r"is a network of MiDi \(mlp_in_pos\), expected one of DiGress") as error:
        import_digress(checkpoint(tmp_path / "midi.ckpt", weights()), dataset="qm9")
    one_line(error)
    (tmp_path / "broken.ckpt").write_bytes(b"PK\x03\x04 broken")
    with pytest.raises(CheckpointError, match=r"broken\.ckpt is truncated") as error:
        import_midi(tmp_path / "broken.ckpt", statistics=data)
    one_line(error)
