"""Further training on a few hundred molecules of one kind (``discrete-grpo sft``), beside the same updates from scratch.

    python -m benchmarks.sft --data zinc250k_test.smi.gz                                     # smiles-zinc, 3 seeds
    python -m benchmarks.sft --data zinc250k_test.smi.gz --policy zinc-graph-small --out sft_graph.json

The kind is what a SMARTS pattern matches, sulfonamides by default. The data are 500 molecules of a file that the policy was not
trained on, and another 1,000 of it measure the loss. Rows: the policy as it is, after ``sft``, and a policy of the same size after
as many updates on the same molecules with the same settings from random weights at its own, higher rate.
"""

from __future__ import annotations

import argparse
import math
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rdkit import Chem

from benchmarks.common import ROOT, stamp, write_result
from discrete_grpo.core.seeding import seeded
from discrete_grpo.datasets.reading import read_smiles
from discrete_grpo.metrics.molecules import canonical, evaluate
from discrete_grpo.recipes.loading import load
from discrete_grpo.recipes.pretraining.sft import SFTRecipe, held_out_loss
from discrete_grpo.recipes.pretraining.sft_data import Prepared, prepare
from discrete_grpo.recipes.pretraining.sft_files import Samples
from discrete_grpo.recipes.sample import sample
from discrete_grpo.runs.console import print_table
from discrete_grpo.training.config import PretrainConfig
from discrete_grpo.training.pretrain import Pretrainer

SULFONAMIDE = "[#16X4](=O)(=O)[#7]"
SOURCES = (
    "discrete_grpo/recipes/pretraining/sft.py",
    "discrete_grpo/recipes/pretraining/sft_data.py",
    "discrete_grpo/training/pretrain.py",
    "benchmarks/sft.py",
)
SCRATCH_RATE = 1e-3
"""Learning rate from random weights, the default of pretraining."""


def of_a_kind(path: str, smarts: str, count: int) -> list[str]:
    """The first ``count`` molecules of a file that a pattern matches."""
    pattern, found = Chem.MolFromSmarts(smarts), []
    for smiles in read_smiles(path).smiles:
        if Chem.MolFromSmiles(smiles).HasSubstructMatch(pattern):
            found.append(smiles)
        if len(found) == count:
            return found
    raise ValueError(f"data: {path} has {len(found)} molecules with {smarts}, expected at least {count}")


def scratch(policy: Any, seed: int) -> Any:
    """A policy like another one with a new network of the same sizes."""
    with seeded(seed):
        policy.network = type(policy.network)(**policy.network.init_args())
    return policy


def measured(policy: Any, ready: Prepared, smarts: str, count: int, seed: int) -> dict[str, float]:
    """Share of samples with the pattern, and the usual numbers; novelty is against the training molecules."""
    assert ready.held_out is not None
    drawn = sample(policy.eval(), count, seed=seed)
    pattern = Chem.MolFromSmarts(smarts)
    mols = [Chem.MolFromSmiles(smiles) for smiles in drawn if smiles is not None]
    known = {name for name in map(canonical, ready.samples) if name is not None}
    found = evaluate(drawn, known)
    return {
        "test_loss": held_out_loss(policy, ready.held_out, 128, draws=ready.draws),
        "of_the_kind": sum(mol is not None and mol.HasSubstructMatch(pattern) for mol in mols) / count,
        **{name: found[name] for name in ("valid", "unique", "novel", "internal_diversity")},
    }


def trained(policy: Any, ready: Prepared, config: PretrainConfig) -> tuple[Any, float]:
    """The policy with averaged weights after the training, and the processor seconds."""
    with tempfile.TemporaryDirectory() as folder:
        trainer = Pretrainer(policy, ready.train, config, folder)
        start = time.process_time()
        trainer.train()
        return trainer.averaged, time.process_time() - start


def row(name: str, seed: int, found: dict[str, float], seconds: float = 0.0) -> dict[str, Any]:
    """What is kept of one policy, numbers to four places."""
    numbers = {key: None if math.isnan(value) else round(value, 4) for key, value in found.items()}
    return {"row": name, "seed": seed, "cpu_seconds": round(seconds, 1), **numbers}


def main(argv: Sequence[str] | None = None) -> None:
    """Measure all rows of every seed, each written when it is there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="file of SMILES that the policy was not trained on")
    parser.add_argument("--policy", default="smiles-zinc")
    parser.add_argument("--smarts", default=SULFONAMIDE)
    parser.add_argument("--molecules", type=int, default=500)
    parser.add_argument("--test_molecules", type=int, default=1000)
    parser.add_argument("--samples", type=int, default=1000)
    parser.add_argument("--max_steps", type=int, default=150)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--out", default="sft.json", help="in benchmarks/results")
    options = parser.parse_args(argv)
    given = of_a_kind(options.data, options.smarts, options.molecules + options.test_molecules)
    samples = Samples(given[: options.molecules], given[options.molecules :], {})
    rows: list[dict[str, Any]] = []
    result: dict[str, Any] = {**stamp(options.seeds[0], sources=SOURCES), "smarts": options.smarts, "rows": rows}
    for seed in options.seeds:
        recipe = SFTRecipe(options.policy, options.data)
        config = replace(recipe.pretrain, max_steps=options.max_steps, save_steps=options.max_steps, seed=seed)
        for name in ("as it is", "sft", "from scratch"):
            ready = prepare(recipe, load(options.policy), samples)
            result["settings"] = {"molecules": len(ready.train), "test_molecules": len(given) - len(ready.train), **vars(config)}
            policy, seconds = ready.policy, 0.0
            if name != "as it is":
                policy = scratch(policy, seed) if name == "from scratch" else policy
                rate = SCRATCH_RATE if name == "from scratch" else config.learning_rate
                policy, seconds = trained(policy, ready, replace(config, learning_rate=rate))
            rows.append(row(name, seed, measured(policy, ready, options.smarts, options.samples, seed), seconds))
            print_table(options.policy, {f"{one['row']}, seed {one['seed']}": one for one in rows[-1:]})
            write_result(ROOT / "benchmarks/results" / options.out, result)


if __name__ == "__main__":
    main()
