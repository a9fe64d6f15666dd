"""Sampler grids of the bundled graph policies: number of steps and time distortion against validity and likeness to the data.

    python -m benchmarks.sampler_grids --data qm9.smi.gz                        # one seed of every grid, about an hour
    python -m benchmarks.sampler_grids --data qm9.smi.gz --policies qm9-small --grids cos:25 identity:50 --seeds 0 1 2

Molecules: 1,000 samples per row; valid, unique and novel as everywhere, and the Fréchet distance of ten RDKit descriptors to 10,000
molecules of the data, each descriptor divided by its standard deviation there (a stand-in for FCD, which needs the weights of
ChemNet). Plain graphs: 5 folds of 40 samples, V.U.N. and the MMD ratio as in ``benchmarks.vun``.

Rows that the result file has already are not measured again, so that a stopped run goes on where it was.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from jaxtyping import Float

from benchmarks.common import ROOT, stamp, write_result
from discrete_grpo.datasets.graph_splits import load_splits
from discrete_grpo.datasets.molecules import load_molecules
from discrete_grpo.datasets.synthetic_graphs import NAMED_SETS
from discrete_grpo.diffusion.choices import Distortion, KernelName
from discrete_grpo.domains.molecule_properties import descriptor
from discrete_grpo.domains.smiles import parse
from discrete_grpo.metrics.graphs import GraphReference, evaluate_folds
from discrete_grpo.metrics.molecules import evaluate
from discrete_grpo.recipes.families import SamplerOptions
from discrete_grpo.recipes.kinds.graphs import shape_of
from discrete_grpo.recipes.loading import load_policy
from discrete_grpo.recipes.sample import sample_policy
from discrete_grpo.runs.console import print_table

POLICIES = ("qm9-small", "planar-16", "tree-16")
STEPS = (50, 35, 25, 16, 10)
SOURCES = ("models/graph_transformer.py", "models/pairs.py", "discrete_grpo/policies/graph.py", "benchmarks/sampler_grids.py")
MOLECULES, FOLDS, FOLD, REFERENCE = 1000, 5, 40, 10_000
DESCRIPTORS = (
    "MolWt",
    "MolLogP",
    "TPSA",
    "RingCount",
    "NumAromaticRings",
    "NumHDonors",
    "NumHAcceptors",
    "NumRotatableBonds",
    "FractionCSP3",
    "qed",
)

Row = dict[str, Any]


# -- likeness of molecules


def described(smiles: Sequence[str | None]) -> Float[np.ndarray, "molecule descriptor"]:
    """The descriptors of the valid ones among ``smiles``."""
    mols = [mol for mol in map(parse, smiles) if mol is not None]
    return np.array([[descriptor(name)(mol) for name in DESCRIPTORS] for mol in mols], dtype=np.float64)


def frechet(a: Float[np.ndarray, "row column"], b: Float[np.ndarray, "row column"]) -> float:
    """Fréchet distance |μ_a - μ_b|² + tr(Σ_a + Σ_b - 2 (Σ_a Σ_b)^½) of the normal laws with the moments of ``a`` and ``b``.

    The columns of both are divided by the standard deviations of ``b``. Source of the formula: Dowson and Landau (1982).

    >>> x = np.random.default_rng(0).normal(size=(1000, 2))
    >>> round(frechet(x, x), 6) + 0.0, round(frechet(x + x.std(0), x), 6)
    (0.0, 2.0)
    """
    scale = np.where(b.std(0) > 0, b.std(0), 1.0)
    a, b = a / scale, b / scale
    first, second = np.cov(a, rowvar=False), np.cov(b, rowvar=False)
    values, vectors = np.linalg.eigh(first)
    root = vectors * np.sqrt(values.clip(0)) @ vectors.T
    middle = np.linalg.eigvalsh(root @ second @ root).clip(0)  # the eigenvalues of Σ_a Σ_b
    moved = float(((a.mean(0) - b.mean(0)) ** 2).sum())
    return moved + float(np.trace(first) + np.trace(second) - 2 * np.sqrt(middle).sum())


class Molecules:
    """Measures samples of molecules against a data set."""

    def __init__(self, path: Path, cache: Path | None) -> None:
        smiles = load_molecules(path, cache_dir=cache).smiles
        drawn = random.Random(0).sample(smiles, REFERENCE + MOLECULES)
        self.known, self.reference = frozenset(smiles), described(drawn[:REFERENCE])
        self.floor = frechet(described(drawn[REFERENCE:]), self.reference)  # what other molecules of the data would have

    def measure(self, samples: Sequence[str | None]) -> Row:
        """The table of a molecule generator and the Fréchet distance."""
        found = evaluate(samples, self.known)
        names = ("valid", "unique", "novel", "internal_diversity", "qed")
        return {name: found[name] for name in names} | {"frechet": frechet(described(samples), self.reference)}


class Graphs:
    """Measures samples of plain graphs against their set."""

    def __init__(self, data: str) -> None:
        self.reference = GraphReference(load_splits(data), shape_of(data))

    def measure(self, samples: Sequence[str | None]) -> Row:
        """Means over folds of what a table of the field has."""
        found = evaluate_folds(samples, self.reference, FOLDS)
        return {name: found[name][0] for name in ("valid", "unique", "novel", "vun", "ratio")}


# -- rows


def measured(place: Mapping[str, Any], measure: Molecules | Graphs) -> Row:
    """One row: samples of one policy on one grid with one seed."""
    options = SamplerOptions(num_steps=place["num_steps"], kernel=place["kernel"], sample_distortion=place["sample_distortion"])
    policy = load_policy(place["policy"], options)
    count = MOLECULES if isinstance(measure, Molecules) else FOLDS * FOLD
    wall, processor = time.perf_counter(), time.process_time()
    samples, _ = sample_policy(policy, count, seed=place["seed"])
    wall, processor = time.perf_counter() - wall, time.process_time() - processor
    seconds = {"seconds_per_1000": 1000 * wall / count, "cpu_seconds_per_1000": 1000 * processor / count}
    return {**place, "samples": count, **measure.measure(samples), **seconds}


def key(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """Identify a row by its settings."""
    return tuple(row[name] for name in ("policy", "kernel", "sample_distortion", "num_steps", "seed"))


def places(given: argparse.Namespace) -> list[Row]:
    """Every combination asked for."""
    grids = given.grids or list(itertools.product(given.distortions, given.steps))
    return [
        {"policy": p, "kernel": given.kernel, "sample_distortion": d, "num_steps": n, "seed": seed}
        for p in given.policies
        for seed in given.seeds
        for d, n in grids
    ]


def grid(text: str) -> tuple[str, int]:
    """Distortion and number of steps of ``cos:25``.

    Raises:
        ValueError: for anything else, which argparse shows.
    """
    name, _, steps = text.partition(":")
    if name not in get_args(Distortion):
        raise ValueError(f"grid: {text!r}, expected a distortion and a number of steps, such as cos:25")
    return name, int(steps)


def averages(rows: Sequence[Row]) -> dict[str, dict[str, str]]:
    """Mean over seeds and half the range of each grid, as shown."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(f"{row['policy']} {row['kernel']} {row['sample_distortion']} {row['num_steps']}", []).append(row)
    shown: dict[str, dict[str, str]] = {}
    for name, same in found.items():
        columns = [c for c in ("valid", "unique", "novel", "vun", "frechet", "ratio", "cpu_seconds_per_1000") if c in same[0]]
        shown[name] = {"seeds": str(len(same))} | {c: _spread([row[c] for row in same]) for c in columns}
    return shown


def _spread(values: Sequence[float]) -> str:
    return f"{np.mean(values):.3f} ± {(max(values) - min(values)) / 2:.3f}" if len(values) > 1 else f"{values[0]:.3f}"


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    parser.add_argument("--policies", nargs="+", choices=POLICIES, default=list(POLICIES))
    parser.add_argument("--steps", nargs="+", type=int, default=list(STEPS))
    parser.add_argument("--distortions", nargs="+", choices=get_args(Distortion), default=list(get_args(Distortion)))
    parser.add_argument("--grids", nargs="+", type=grid, help="pairs such as cos:25, in the place of steps and distortions")
    parser.add_argument("--kernel", choices=get_args(KernelName), default="d3pm")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--data", type=Path, default=None, help="QM9 as SMILES; needed for qm9-small")
    parser.add_argument("--cache", type=Path, default=None, help="folder where the parsed data is kept")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results/sampler_grids.json")
    given = parser.parse_args(argv)
    if given.data is None and any(policy not in NAMED_SETS for policy in given.policies):
        parser.error("--data: none, expected a file of SMILES with the policy qm9-small")
    return given


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure what is missing, print and write."""
    given = _arguments(argv)
    torch.set_num_threads(1)
    result: dict[str, Any] = json.loads(given.out.read_text()) if given.out.exists() else {"runs": [], "rows": []}
    known = {key(row) for row in result["rows"]}
    todo = [place for place in places(given) if key(place) not in known]
    measures: dict[str, Molecules | Graphs] = {}
    if todo:
        sources = [*SOURCES, *(f"discrete_grpo/bundled/{name}/model.safetensors" for name in given.policies)]
        result["runs"].append(stamp(given.seeds[0], sources=sources))
    for place in todo:
        name = place["policy"]
        if name not in measures:
            measures[name] = Graphs(name) if name in NAMED_SETS else Molecules(given.data, given.cache)
        row = measured(place, measures[name]) | {"run": len(result["runs"]) - 1}
        print(json.dumps(row), flush=True)
        result["rows"].append(row)
        if isinstance(reference := measures[name], Molecules):
            result["frechet_of_data"] = reference.floor
        write_result(given.out, result)
    print_table("grids, mean ± half the range over seeds", averages(result["rows"]))
    return result


if __name__ == "__main__":
    main()
