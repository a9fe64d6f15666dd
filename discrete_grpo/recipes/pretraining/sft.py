"""Further likelihood training of a policy on samples of your own: supervised fine-tuning, also called transfer learning."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

from discrete_grpo.core.checks import check_choices, check_fields, check_text
from discrete_grpo.core.option_names import known_options
from discrete_grpo.datasets.text_files import MAX_BYTES
from discrete_grpo.domains.graph6 import MAX_NODES
from discrete_grpo.recipes.families import SamplerOptions, family_of
from discrete_grpo.recipes.loading import load
from discrete_grpo.recipes.pretraining.fitting import fit
from discrete_grpo.recipes.pretraining.held_out import held_out_loss, with_held_out
from discrete_grpo.recipes.pretraining.sft_data import Prepared, prepare
from discrete_grpo.recipes.pretraining.sft_files import samples_of
from discrete_grpo.recipes.pretraining.training_conditions import training_conditions
from discrete_grpo.recipes.sample import sample_policy
from discrete_grpo.training.config import PretrainConfig
from discrete_grpo.training.lora import LoraOptions, add_lora

__all__ = ["SFTRecipe", "held_out_loss", "run_sft"]


@known_options()
@dataclass(frozen=True)
class SFTRecipe(SamplerOptions):
    """Further likelihood training of a policy on samples of your own: supervised fine-tuning, or transfer learning.

    Network, classes or alphabet, noise and conditions of the policy are kept, and the sampler unless an option changes it.
    A diffusion or flow policy then draws graphs with the sizes of the data.

    Attributes:
        policy: a bundled policy's name, a checkpoint folder, a run folder, or a class of your own as module:Class@FOLDER.
        data: file of samples of the kind that the policy makes: SMILES, graphs (or a named set), molecules in space, lines of text.
        output_dir: run folder to make.
        test_share: share of the different samples, or of the graphs of a file, that is not trained on, and that the loss is
            measured on, without conditions unless the policy was always trained with them; a file with splits has its own.
        max_broken: largest share of samples that may be broken, and of those that the policy cannot draw, such as molecules with
            other elements; they are left out.
        marginals: frequencies of classes in which the noise of a diffusion or flow policy of graphs ends: those of the ``policy``,
            or those of the ``data``.
        pretrain: settings of the training loop.
        evaluation_samples: samples drawn before the training and at every checkpoint to log their metrics, under conditions of the
            training samples if the policy was always trained with conditions; 0 means none.
        smiles_column: name of the column of SMILES in ``data``; None finds it by its name.
        node_attribute: of own graphs: attribute of nodes that holds their class; None takes the only one.
        edge_attribute: of own graphs: attribute of edges that holds their class; None takes the only one.
        max_nodes: largest number of nodes of a graph of a file.
        max_bytes: largest size that a gzipped file may unpack to.
        data_name: name kept with the checkpoint; None means that of ``data``.
        data_licence: licence kept with the checkpoint.
        lora: low-rank adapters: the network is frozen and they are trained; the exported policy has them merged.
    """

    policy: str = "smiles-zinc"
    data: str | None = None
    output_dir: str = "runs/sft"
    test_share: float = 0.1
    max_broken: float = 0.05
    marginals: Literal["policy", "data"] = "policy"
    pretrain: PretrainConfig = field(  # few updates at a low rate, as the policy is already trained
        default_factory=partial(
            PretrainConfig,
            max_steps=500,
            batch_size=64,
            learning_rate=1e-4,
            warmup_steps=20,
            ema_decay=0.99,
            log_steps=10,
            save_steps=100,
        )
    )
    evaluation_samples: int = 256
    smiles_column: str | None = None
    node_attribute: str | None = None
    edge_attribute: str | None = None
    max_nodes: int = MAX_NODES
    max_bytes: int = MAX_BYTES
    data_name: str | None = None
    data_licence: str = "unknown"
    lora: LoraOptions = field(default_factory=LoraOptions)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.lora, LoraOptions):
            raise ValueError(f"lora: {self.lora!r}, expected a LoraOptions")
        check_text("policy", self.policy, "the name of a policy or its folder")
        if self.data is not None:
            check_text("data", self.data, "the name of a file of samples")
        check_fields(self, "test_share", above=0, below=1)
        check_fields(self, "max_broken", least=0, most=1)
        check_fields(self, "evaluation_samples", least=0)
        check_fields(self, "max_nodes max_bytes", least=1)
        check_choices(self)

    @property
    def source(self) -> str:
        """``data``, which must be given; raises ValueError where it is not."""
        if self.data is None or not self.data.strip():
            raise ValueError(f"data: {self.data!r}, expected the name of a file of samples")
        return self.data


def run_sft(recipe: SFTRecipe, *, resume: bool = False) -> Path:
    """Train a policy further by likelihood; returns the folder of the exported policy.

    Raises:
        CheckpointError: if there is no such policy.
        FileNotFoundError: if there is no such file of data.
        ValueError: if the data cannot be read, or the policy cannot draw it.
    """
    loaded = load(recipe.policy, recipe, seed=recipe.pretrain.seed)
    found = samples_of(recipe, loaded)
    ready = prepare(recipe, loaded, found)
    if recipe.lora.r:
        add_lora(ready.policy, recipe.lora.r, recipe.lora.lora_alpha, recipe.lora.target_modules, seed=recipe.pretrain.seed)
    kept = {name: value for name, value in loaded.metadata.items() if name not in ("data", "date", "pretraining_steps")}
    metadata = {**kept, "kind": loaded.family.name, "data": {**found.about, "samples": ready.count}, "trained_from": recipe.policy}
    measure = _measure(recipe, ready, metadata)
    return fit(ready.policy, ready.train, recipe, metadata=metadata, evaluate=measure, before=True, resume=resume)


def _measure(
    recipe: SFTRecipe, ready: Prepared, metadata: Mapping[str, Any]
) -> Callable[[Any], tuple[Mapping[str, float], Sequence[Any]]]:
    """The loss of the held-out samples, and the numbers of ``evaluation_samples`` fresh ones."""
    known = _names(ready.samples) if metadata["kind"] == "molecules" else None
    family = family_of(metadata, ready.policy)
    columns = training_conditions(ready.policy, ready.train, recipe.evaluation_samples)
    batch_size = 40 if family.name == "graphs" else 256

    def measure(policy: Any) -> tuple[Mapping[str, float], Sequence[Any]]:
        if not recipe.evaluation_samples or hasattr(policy, "blank"):  # texts with blanks need prompts
            return {}, ()
        drawn, _ = sample_policy(policy, recipe.evaluation_samples, batch_size=batch_size, columns=columns)
        if known is None:
            return family.evaluate(drawn), drawn
        from discrete_grpo.metrics.molecules import evaluate

        return evaluate(drawn, known), drawn

    return with_held_out(measure, ready.held_out, recipe.pretrain.batch_size, draws=ready.draws) or measure


def _names(smiles: Sequence[str]) -> Collection[str]:
    from discrete_grpo.metrics.molecules import canonical

    return {name for name in map(canonical, smiles) if name is not None}
