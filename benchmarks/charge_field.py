"""Validity of molecules with the formal charge as a field beside the element, and as a part of the atom type, at equal training.

    python -m benchmarks.charge_field --data zinc250k_train.smi.gz     # not yet run in full; six runs of 2 to 2.5 hours on one core
    python -m benchmarks.charge_field --data zinc250k_train.smi.gz --layers 4 --width 64 --edge_width 24 --global_width 32
    python -m benchmarks.charge_field --data zinc250k_test.smi.gz --updates 4 --samples 8 --num_steps 4 --seeds 0 --out a.json

The second command, with a smaller network, takes 50 minutes per run and the third, which only tries the script, two minutes.

Both variants are a diffusion over fields with the same network, an equivariant transformer without positions, the same noise,
learning rate, batches and number of updates, on the same molecules: ``field`` has the fields atom, charge and bond, ``joint`` has
atom and bond with atom types such as N, N+1 and O-1. The weights in the loss are 1 for fields of atoms and 5 for bonds. The seed
is that of the initial weights, the batches, the noise and the samples.

Rows that the result file has already are not measured again, and a run that was stopped goes on at its newest checkpoint in
``--work``. ``--runs 1`` makes one run per call.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics as moments
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from benchmarks.common import ROOT, stamp, write_result
from discrete_grpo.core.seeding import seeded
from discrete_grpo.datasets.molecule_fields import FieldMolecules, field_statistics
from discrete_grpo.datasets.molecules import MoleculeDataset, MoleculeStatistics, load_molecules, statistics
from discrete_grpo.domains import molecules as chemistry
from discrete_grpo.domains.fields import FieldBatch
from discrete_grpo.domains.graphs import GraphBatch
from discrete_grpo.domains.smiles import parse_all
from discrete_grpo.metrics.molecules import evaluate
from discrete_grpo.models.equivariant import EquivariantConfig, EquivariantSizes, EquivariantTransformer
from discrete_grpo.policies.fields import Field, FieldPolicy
from discrete_grpo.recipes.pretraining.molecule_fields import BOND_WEIGHT, ChargeOptions, molecule_field_policy
from discrete_grpo.recipes.sample import sample
from discrete_grpo.runs.console import print_table
from discrete_grpo.training.config import PretrainConfig
from discrete_grpo.training.pretrain import Dataset, Pretrainer

SOURCES = (
    "discrete_grpo/policies/fields.py",
    "discrete_grpo/policies/field_steps.py",
    "discrete_grpo/recipes/pretraining/molecule_fields.py",
    "discrete_grpo/domains/molecule_fields.py",
    "models/equivariant.py",
)
VARIANTS = ("joint", "field")
COLUMNS = ("valid", "unique", "charged_molecules", "charged_atoms")

Row = dict[str, Any]


@dataclass(frozen=True)
class Settings:
    """Settings that all runs of a result share.

    Attributes:
        molecules: number of molecules that are trained on, drawn at random; 0 takes all.
        updates: of likelihood training.
        batch: molecules per update.
        learning_rate: of AdamW.
        ema_decay: of the moving average of the weights, which is sampled.
        samples: molecules drawn at the end.
        num_steps: of the sampler.
        noise: distribution that graphs are noised to.
        charge_weight: weight of the charges in the loss of ``field``.
        charge_exponent: ν of the schedule of the charges of ``field``.
        layers: of the network.
        heads: of the network.
        width: of the network's nodes.
        edge_width: of the network's pairs.
        global_width: of the network's graph.
    """

    molecules: int = 0
    updates: int = 10_000
    batch: int = 64
    learning_rate: float = 5e-4
    ema_decay: float = 0.999
    samples: int = 1000
    num_steps: int = 100
    noise: str = "marginal"
    charge_weight: float = 1.0
    charge_exponent: float = 1.0
    layers: int = 6
    heads: int = 8
    width: int = 128
    edge_width: int = 48
    global_width: int = 64

    @property
    def sizes(self) -> EquivariantSizes:
        """Sizes of the network of both variants."""
        known = {field.name for field in fields(EquivariantSizes)}
        return EquivariantSizes(**{name: value for name, value in asdict(self).items() if name in known})

    @property
    def options(self) -> ChargeOptions:
        """Noise and sampler."""
        names = ("noise", "num_steps", "charge_weight", "charge_exponent")
        return ChargeOptions(**{name: getattr(self, name) for name in names})


# -- the joint variant as a policy over fields


def decode_joint(graphs: FieldBatch, vocabulary: chemistry.Vocabulary) -> list[str | None]:
    """SMILES of graphs whose one field of nodes is the atom type with its charge."""
    return chemistry.decode(GraphBatch(graphs.nodes["atom"], graphs.edges["bond"], graphs.mask), vocabulary)


def joint_policy(stats: MoleculeStatistics, sizes: EquivariantSizes, options: ChargeOptions, seed: int) -> FieldPolicy:
    """The policy of :func:`molecule_field_policy` with atom types of a joint vocabulary in the place of two fields."""
    atom = Field("atom", options.make_kernel(stats.node_marginal))
    bond = Field("bond", options.make_kernel(stats.edge_marginal), BOND_WEIGHT)
    config = EquivariantConfig(
        node_fields={"atom": atom.kernel.noise.num_states},
        edge_fields={"bond": bond.kernel.noise.num_states},
        node_classes={"atom": atom.kernel.noise.num_clean},
        edge_classes={"bond": bond.kernel.noise.num_clean},
        **vars(sizes),
    )
    with seeded(seed):
        network = EquivariantTransformer(config)
    decode = partial(decode_joint, vocabulary=stats.vocabulary)
    return FieldPolicy(network, [atom], [bond], stats.node_counts, num_steps=options.num_steps, decode=decode)


@dataclass(frozen=True)
class JointMolecules:
    """Molecules as graphs with the fields atom (with its charge) and bond."""

    data: MoleculeDataset

    @property
    def sizes(self) -> Int[Tensor, " molecule"]:
        """Number of atoms of each."""
        return self.data.sizes

    def __len__(self) -> int:
        return len(self.data)

    def batch(self, rows: Int[Tensor, " row"]) -> FieldBatch:
        """The molecules at ``rows``."""
        graphs = self.data.batch(rows)
        return FieldBatch({"atom": graphs.nodes.long()}, {"bond": graphs.edges.long()}, None, graphs.mask)


# -- runs


def charged(samples: Sequence[str | None]) -> tuple[float, float]:
    """Share of the valid molecules that have a charged atom, and of their atoms that are charged; 0 without any.

    >>> charged(["C[N+](C)(C)CC(=O)[O-]", "CCCC", None])
    (0.5, 0.1666...)
    """
    mols = [mol for mol in parse_all(samples) if mol is not None]
    counts = [[atom.GetFormalCharge() != 0 for atom in mol.GetAtoms()] for mol in mols]
    atoms = list(itertools.chain.from_iterable(counts))
    return sum(map(any, counts)) / max(len(counts), 1), sum(atoms) / max(len(atoms), 1)


def load(path: Path, settings: Settings, cache: Path | None = None) -> MoleculeDataset:
    """The molecules that both variants are trained on; their parsed form is kept in ``cache``."""
    data = load_molecules(path, cache_dir=cache)
    if not 0 < settings.molecules < len(data):
        return data
    rows = torch.randperm(len(data), generator=torch.Generator().manual_seed(0))[: settings.molecules]
    return data.index(rows.sort().values)


def run(settings: Settings, data: MoleculeDataset, variant: str, seed: int, folder: Path) -> Row:
    """Train one policy, from its newest checkpoint in ``folder`` if there is one, and measure its samples."""
    stats, sizes, options = statistics(data), settings.sizes, settings.options
    trained_on: Dataset
    if variant == "field":
        of_fields = field_statistics(stats)
        policy = molecule_field_policy(of_fields, sizes, options, seed=seed)
        trained_on = FieldMolecules(data, of_fields.fields)
    else:
        policy, trained_on = joint_policy(stats, sizes, options, seed), JointMolecules(data)
    config = PretrainConfig(
        max_steps=settings.updates,
        batch_size=settings.batch,
        learning_rate=settings.learning_rate,
        warmup_steps=min(200, settings.updates // 10),
        ema_decay=settings.ema_decay,
        seed=seed,
    )
    begun = time.perf_counter()
    trainer = Pretrainer(policy, trained_on, config, folder, resume=folder.exists())
    already = trainer.step
    trainer.train()
    trained = time.perf_counter()
    drawn = sample(trainer.averaged, settings.samples, seed=seed)
    ended = time.perf_counter()
    found = evaluate(drawn)
    molecules, atoms = charged(drawn)
    return {
        "variant": variant,
        "seed": seed,
        "parameters": sum(p.numel() for p in policy.parameters()),
        "device": str(policy.device),
        **{name: found[name] for name in ("sanitised", "connected", "valid", "unique")},
        "charged_molecules": molecules,
        "charged_atoms": atoms,
        "seconds_per_update": (trained - begun) / max(settings.updates - already, 1),
        "sampling_seconds": ended - trained,
    }


def table(rows: Sequence[Row], of_data: Mapping[str, float]) -> dict[str, dict[str, str]]:
    """Mean over seeds and half the range of every variant, and the shares of the data."""
    found: dict[str, dict[str, str]] = {}
    for variant in dict.fromkeys(row["variant"] for row in rows):
        same = [row for row in rows if row["variant"] == variant]
        found[variant] = {"seeds": str(len(same))} | {name: _spread([row[name] for row in same]) for name in COLUMNS}
    return found | {"data": {name: f"{value:.4f}" for name, value in of_data.items()}}


def _spread(values: Sequence[float]) -> str:
    return f"{moments.fmean(values):.4f} ± {(max(values) - min(values)) / 2:.4f}"


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    parser.add_argument("--data", type=Path, required=True, help="file of SMILES, such as those of ZINC")
    for name, default in asdict(Settings()).items():
        parser.add_argument(f"--{name}", type=type(default), default=default)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--runs", type=int, help="most runs of this call; all that are missing by default")
    parser.add_argument(
        "--work", type=Path, default=ROOT / "runs/charge_field", help="folder of the checkpoints and of the parsed data"
    )
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results/charge_field.json")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure what is missing, print and write; the file is written after every run."""
    given = _arguments(argv)
    torch.set_num_threads(1)
    settings = Settings(**{name: getattr(given, name) for name in asdict(Settings())})
    shared = {"data": given.data.name, "settings": asdict(settings)}
    result: dict[str, Any] = json.loads(given.out.read_text()) if given.out.exists() else {**shared, "stamps": [], "rows": []}
    if other := [name for name, value in shared.items() if result[name] != value]:
        raise SystemExit(f"--out: {given.out} has other {other[0]}, expected a new file, or the options of its first call")
    known = {(row["variant"], row["seed"]) for row in result["rows"]}
    todo = [place for place in itertools.product(given.variants, given.seeds) if place not in known]
    todo = sorted(todo, key=lambda place: place[1])[: given.runs]  # both variants of a seed, then the next seed
    if todo:
        data = load(given.data, settings, given.work / "data")
        result["stamps"].append(stamp(todo[0][1], sources=SOURCES))
        result["of_data"] = {"molecules": len(data)} | dict(zip(COLUMNS[2:], charged(data.smiles[:10_000]), strict=True))
    for variant, seed in todo:
        row = run(settings, data, variant, seed, given.work / f"{given.out.stem}-{variant}-{seed}")
        result["rows"].append(row | {"stamp": len(result["stamps"]) - 1})
        print(json.dumps(row), flush=True)
        shown = {name: result["of_data"][name] for name in COLUMNS[2:]}
        result["table"] = table(result["rows"], shown)
        write_result(given.out, result)
    print_table("charges in the atom type and as a field, mean ± half the range over seeds", result.get("table", {}))
    return result


if __name__ == "__main__":
    main()
