"""GRPO fine-tuning of a policy of any family: the settings of a run, the run itself, and both as one function."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from discrete_grpo.core.checks import check_fields, check_folder_name, told_as
from discrete_grpo.core.option_names import check_options, known_options
from discrete_grpo.core.own_surrogate import SurrogateFunc
from discrete_grpo.core.reward_arguments import check_callables, checked_reward, function_names, reward_names
from discrete_grpo.core.rollout import Reward
from discrete_grpo.policies.options import Likelihood, NodeCount, graph_part, with_options, without_likelihood
from discrete_grpo.recipes.conditions import check_read, column_names, kept_columns, prepare_and_tell, read_columns
from discrete_grpo.recipes.evaluations import Evaluations, Results, check_evaluation_budget
from discrete_grpo.recipes.failed_runs import withdrawn_on_failure
from discrete_grpo.recipes.families import Columns, View, check_view
from discrete_grpo.recipes.loading import LoadedPolicy, class_name, load, policy_object
from discrete_grpo.recipes.offline import KEPT, OfflineOptions, offline_trainer, scored_samples
from discrete_grpo.recipes.reward_changes import tell_changed_rewards
from discrete_grpo.recipes.reward_kinds import rewards_for
from discrete_grpo.recipes.reward_memories import RewardMemories
from discrete_grpo.recipes.reward_workers import in_workers
from discrete_grpo.recipes.run_length import check_run_length
from discrete_grpo.recipes.stopping import StopOptions, end_if_reached, with_stop
from discrete_grpo.rewards.ledger import Ledger, open_ledger, reserved
from discrete_grpo.runs.checkpoint import CheckpointError, Checkpoints, save, withdraw_export
from discrete_grpo.runs.console import print_notes, print_table
from discrete_grpo.runs.folder import MEMORIES, SAMPLES, check_unused
from discrete_grpo.runs.serialization import check_savable
from discrete_grpo.runs.settings import tell_changed_settings, tell_new_folder
from discrete_grpo.runs.trackers import ReportTo, open_trackers
from discrete_grpo.training.compatibility import check_adapters
from discrete_grpo.training.config import GRPOConfig
from discrete_grpo.training.distributed import ProcessGroup, accelerator
from discrete_grpo.training.generation_advantages import AdvantageFunc
from discrete_grpo.training.lora import LoraOptions, add_lora, without_lora
from discrete_grpo.training.offline import OfflineTrainer, ScoredSamples
from discrete_grpo.training.on_update import OnUpdate
from discrete_grpo.training.trainer import GRPOTrainer

__all__ = ["TrainRecipe", "check_evaluation_budget", "run_train", "train"]

FUNCTIONS = ("advantage_func", "surrogate_func", "on_update")
"""Arguments of :func:`train` that are custom functions besides the rewards."""


@known_options()
@dataclass(frozen=True)
class TrainRecipe(OfflineOptions, StopOptions):
    """GRPO fine-tuning of a policy of any family.

    Attributes:
        policy: a bundled policy's name, a checkpoint folder, a run folder, or a class of your own as module:Class (new) or
            module:Class@FOLDER (from a checkpoint).
        reward: one reward or several, by import path (a bare name is looked up in ``discrete_grpo.rewards``); an empty list with
            data: the run ends after the off-line updates.
        output_dir: run folder to make.
        grpo: settings of the training loop.
        columns: conditions, one mapping per group, in an order drawn anew for every generation; or a file of JSON lines. Rewards
            see each as a keyword argument. None means no conditions.
        evaluation_columns: conditions of the samples drawn before and after training; None means those of training.
        scaffold: SMILES every sample should contain: fixed atoms and bonds of a graph policy, with * where it may grow, or the
            prompt of a SMILES policy; None leaves all free.
        likelihood: of a graph policy: transition (exact, of the steps as drawn), or the surrogates eager and elbo.
        elbo_draws: number of states that likelihood elbo is estimated at.
        node_count: of a graph policy: prior (the histogram, drawn once per group), or learned or running, where the choice is a
            step of the policy.
        lora: low-rank adapters: the network is frozen and they are trained; the exported policy has them merged.
        evaluation_samples: number of samples drawn before and after training to compare; 0 draws none.
        max_oracle_calls: number of different valid samples that may be scored in all, evaluations included; the run ends when
            no more is left than the last evaluation needs. None sets no limit.
        reward_cache: SQLite file of scores that several runs may share; None takes one in the run folder. A score from the
            cache is not computed again, and counts as a call all the same.
        reward_workers: number of worker processes that score the samples, for rewards that are slow or crash; 0 scores in this
            process. A reward in workers must be importable; one that compares samples stays in this process.
        report_to: copies of the metrics: ``tensorboard``, ``wandb``; each is an extra to install.
        rewards_see: form in which rewards see graphs: text (graph6 lines with classes), networkx (graphs with the class of a node
            or edge by its attribute) or pyg (``Data`` with numbers of classes); of molecules in space: text (as the policy gives
            them) or smiles, for rewards of molecules without positions.
    """

    policy: str = "qm9-small"
    reward: Callable[..., Any] | list[Callable[..., Any]] = "discrete_grpo.rewards.molecules.qed"  # type: ignore[assignment]
    output_dir: str = "runs/train"
    grpo: GRPOConfig = field(default_factory=GRPOConfig)
    columns: str | list[dict[str, Any]] | None = None
    evaluation_columns: str | list[dict[str, Any]] | None = None
    scaffold: str | None = None
    likelihood: Likelihood = "transition"
    elbo_draws: int = 10
    node_count: NodeCount = "prior"
    lora: LoraOptions = field(default_factory=LoraOptions)
    evaluation_samples: int = 500
    max_oracle_calls: int | None = None
    reward_cache: str | None = None
    reward_workers: int = 0
    report_to: tuple[ReportTo, ...] = ()
    rewards_see: View = "text"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, kind in (("grpo", GRPOConfig), ("lora", LoraOptions)):
            if not isinstance(getattr(self, name), kind):
                raise ValueError(f"{name}: {getattr(self, name)!r}, expected a {kind.__name__}")
        check_fields(self, "evaluation_samples reward_workers", least=0)
        check_fields(self, "elbo_draws", least=1)
        check_view(self.rewards_see)
        check_evaluation_budget(self.max_oracle_calls, self.evaluation_samples)
        self.check_stop(self.rewards)
        self.check_offline(columns=self.columns, scaffold=self.scaffold)
        if not self.rewards and self.data is None:
            raise ValueError("reward: an empty list, expected at least one reward, or data (a table of scored samples)")
        if self.shared_steps and self.grpo.replay_samples > 0:
            raise ValueError(f"shared_steps: {self.shared_steps}, expected 0 with replay_samples: replayed rows share no steps")

    @property
    def rewards(self) -> list[Reward]:
        """The rewards as a list."""
        return list(self.reward) if isinstance(self.reward, list | tuple) else [self.reward]

    @property
    def settings(self) -> dict[str, Any]:
        """Settings that may differ when a run goes on, by name."""
        others = {"reward", "output_dir", "columns", "evaluation_columns", "reward_cache", "reward_workers", "report_to"}
        found = {part.name: getattr(self, part.name) for part in fields(self) if part.name not in others}
        return found | {"grpo": asdict(self.grpo), "lora": asdict(self.lora)}


def train(
    policy: str | Path | nn.Module,
    reward: Reward | Sequence[Reward],
    *,
    output_dir: str | Path,
    grpo: GRPOConfig | None = None,
    columns: str | Sequence[Columns] | None = None,
    evaluation_samples: int = 500,
    resume: bool = False,
    advantage_func: AdvantageFunc | None = None,
    surrogate_func: SurrogateFunc | None = None,
    on_update: OnUpdate | None = None,
    **settings: Any,
) -> Results:
    """Fine-tune a policy against a reward; the trained policy, metrics, samples and a report are written to a run folder.

    Args:
        policy: the name of a policy, as for :func:`~discrete_grpo.recipes.loading.load_policy`, or a policy that you made: an
            ``nn.Module`` with the methods of :class:`~discrete_grpo.core.rollout.Policy` and ``init_args()``. It is left as it
            was; the trained one is loaded from the run folder.
        reward: a function ``reward(samples, **columns)`` that gives one number per sample, or several of them.
        output_dir: run folder to make.
        grpo: settings of the training loop; None takes the defaults.
        columns: conditions, one mapping per group, in an order drawn anew for every generation; or a file of JSON lines.
        evaluation_samples: number of samples drawn before and after training to compare; 0 draws none.
        resume: continue the run in ``output_dir``.
        advantage_func: custom advantages, as for :class:`~discrete_grpo.training.trainer.GRPOTrainer`; a resumed run needs it
            again, as it does ``surrogate_func``.
        surrogate_func: custom surrogate, see the same class.
        on_update: function ``(trainer, metrics) -> bool | None`` that is called after every on-line update, and ends
            training if it returns True.
        **settings: further fields of :class:`TrainRecipe`, such as ``num_steps`` or ``max_oracle_calls``.

    Returns:
        The numbers of the evaluations ``before`` and ``after`` training.

    Raises:
        ValueError: for a setting out of its range, or if ``output_dir`` holds another run and ``resume`` is false.
    """
    check_options(settings, TrainRecipe, also=(*FUNCTIONS, "resume"))
    if policy is None:
        raise ValueError("policy: None, expected a name or a policy")
    check_folder_name("output_dir", output_dir)
    given = None if columns is None or isinstance(columns, str) else [dict(condition) for condition in read_columns(columns)]
    recipe = TrainRecipe(
        policy=str(policy) if isinstance(policy, str | Path) else type(policy).__name__,
        reward=checked_reward(reward),
        output_dir=str(output_dir),
        grpo=grpo or GRPOConfig(),
        columns=columns if isinstance(columns, str) else given,
        evaluation_samples=evaluation_samples,
        **settings,
    )
    pairs = zip(FUNCTIONS, (advantage_func, surrogate_func, on_update), strict=True)
    functions = {name: function for name, function in pairs if function is not None}
    if functions and not recipe.rewards:
        raise ValueError(f"{next(iter(functions))}: given, expected none without a reward: only training on fresh samples uses it")
    if resume:
        tell_new_folder(Path(output_dir))
    else:
        check_adapters(recipe.lora)
    with withdrawn_on_failure(Path(output_dir), calls_count=False):
        own = None if isinstance(policy, str | Path) else policy
        return run_train(recipe, resume=resume, policy=own, functions=functions)


def run_train(
    recipe: TrainRecipe, *, resume: bool = False, policy: nn.Module | None = None, functions: Mapping[str, Any] | None = None
) -> Results:
    """Evaluate, train, evaluate again, export the policy and write the report; return both evaluations.

    With ``data``, updates on its samples come first, and on-line training begins with the weights that they end with. Under
    ``torchrun`` every process calls this; the first one measures and writes.

    Args:
        recipe: the settings.
        resume: continue the run in ``output_dir``, from its start where it was stopped before its first checkpoint.
        policy: a policy to train in place of the one that the recipe names.
        functions: custom functions, by the names of the arguments of the trainer.

    Raises:
        ValueError: if ``output_dir`` holds results of another run and ``resume`` is false.
        CheckpointError: if it holds samples but no checkpoint and ``resume`` is true.
    """
    processes, folder, functions = ProcessGroup(accelerator()), Path(recipe.output_dir), functions or {}
    processes.run_all(lambda: _check_folder(folder, resume) if processes.first else None)
    check_callables(recipe.rewards)
    loaded = _load(recipe, policy, resume)
    check_savable("policy", loaded.policy)
    if processes.first:
        tell_changed_rewards(folder, recipe.rewards, resume=resume)
        kept = _kept(folder, recipe) if resume else ()
        told = function_names(**{name: functions.get(name) for name in FUNCTIONS})
        check = partial(check_run_length, folder, "grpo", recipe.grpo, rewarded=bool(recipe.rewards))
        tell_changed_settings(folder, recipe.settings | told, resume=resume, fixed=("policy", *kept), check=check)
    given = recipe.rewards
    recipe = replace(recipe, reward=rewards_for(given, loaded.policy, loaded.family, recipe.rewards_see))
    functions = with_stop(recipe, loaded.family, functions)
    metadata = {**loaded.metadata, "policy": recipe.policy, "rewards": reward_names(recipe.rewards)}
    with in_workers(recipe.rewards, recipe.reward_workers) as rewards:
        return _run(replace(recipe, reward=rewards), loaded, given, processes, metadata, resume, functions)


def _run(
    recipe: TrainRecipe,
    loaded: LoadedPolicy,
    given: list[Reward],
    processes: ProcessGroup,
    metadata: dict[str, Any],
    resume: bool,
    functions: Mapping[str, Any],
) -> Results:
    """Do the work of :func:`run_train`; ``recipe`` has the rewards as the run calls them, ``given`` are those of the user."""
    family, folder = loaded.family, Path(recipe.output_dir)
    resumed = resume and bool(Checkpoints(folder).all())
    scored = _scores_given(recipe, loaded, resume, resumed)
    start = copy.deepcopy(loaded.policy) if processes.first and recipe.evaluation_samples else None
    memories = RewardMemories(recipe.rewards, folder / MEMORIES if processes.first else None, resume=resume)
    loaded = replace(loaded, policy=_trained(loaded.policy, recipe, resumed))
    columns, held_out = _conditions(recipe, loaded, processes, resume)
    for conditions in (columns, held_out):
        check_callables(given, column_names(loaded.policy, conditions))
    tracker = open_trackers(folder, recipe.report_to, {"grpo": asdict(recipe.grpo)}, picture=family.picture)
    budget: dict[str, Any] = {"max_oracle_calls": recipe.max_oracle_calls, "reward_cache": recipe.reward_cache}
    with open_ledger(folder, family.key, rank=processes.rank, **budget) as ledger:
        evaluations = Evaluations(recipe, family, folder, held_out, ledger, memories, accelerator().device)
        if not recipe.rewards and scored is not None:
            return _train_offline(recipe, loaded, scored, start, evaluations, resume)
        with told_as("reward", "reward_funcs"):
            trainer = GRPOTrainer(
                loaded.policy,
                recipe.rewards,
                recipe.grpo,
                columns=columns,
                run=folder,
                sample_metrics=family.sample_metrics,
                metadata=metadata,
                resume=resumed,
                ledger=ledger,
                tracker=tracker if processes.first else None,
                **functions,
            )
        offline = None if scored is None else _offline(recipe, trainer.policy, scored, metadata, resume)
        _in_first(processes, ledger, lambda: evaluations.before(start))
        end_if_reached(trainer, folder)
        if resumed and processes.first and trainer.step < trainer.config.max_steps:  # nothing above has refused the resume
            withdraw_export(folder)
        start = None  # no second policy in the memory of the device
        _learn(trainer, offline, ledger, recipe.evaluation_samples)
        metadata["grpo_steps"] = trainer.step
        return _in_first(processes, ledger, lambda: _finish(evaluations, trainer.best_policy, metadata, trainer.step))


def _kept(folder: Path, recipe: TrainRecipe) -> tuple[str, ...]:
    """Names of the settings of off-line updates that are fixed when a run begins, whatever a resume gives."""
    begun = bool(Checkpoints(folder).all()) or (recipe.data is not None and (folder / KEPT).is_file())
    return ("data", "score_column", "sample_column", "group_column") if begun else ()


def _check_folder(folder: Path, resume: bool) -> None:
    """Check that the folder of a new run is unused, and that a resumed run which has drawn samples still has a checkpoint."""
    if not resume:
        check_unused(folder)
    elif (folder / SAMPLES).exists() and not Checkpoints(folder).all():
        raise CheckpointError(
            f"{folder}: holds samples of updates but no checkpoint to go on from; was {folder / 'checkpoints'} removed?"
        )


def _load(recipe: TrainRecipe, policy: nn.Module | None, resume: bool) -> LoadedPolicy:
    """The policy of a run: its own newest one when resuming, which needs nothing but the run folder, else the recipe's."""
    if policy is not None:  # the trainer restores its weights when resuming
        return policy_object(copy.deepcopy(policy), recipe)
    own = class_name(recipe.policy)
    for path in reversed(Checkpoints(recipe.output_dir).all() if resume else []):
        try:
            return load(f"{own}@{path}" if own else path, recipe)
        except CheckpointError:
            continue
    return load(recipe.policy, recipe, seed=recipe.grpo.seed)


def _trained(policy: Any, recipe: TrainRecipe, resumed: bool) -> Any:
    """Apply likelihood, node count and adapters of the recipe to the policy; one of a checkpoint of the run has its wrappers."""
    wrapped = resumed and graph_part(policy) not in (None, policy)
    changed = policy if wrapped else with_options(policy, recipe.likelihood, recipe.node_count, recipe.elbo_draws)
    if recipe.lora.r:
        add_lora(changed, recipe.lora.r, recipe.lora.lora_alpha, recipe.lora.target_modules, seed=recipe.grpo.seed)
    return changed


def _conditions(
    recipe: TrainRecipe, loaded: LoadedPolicy, processes: ProcessGroup, resume: bool
) -> tuple[list[Columns] | None, list[Columns] | None]:
    """The conditions of training and of the evaluations, as the policy reads them."""
    names = ("columns", "evaluation_columns")
    folder = Path(recipe.output_dir)

    def work() -> list[list[Columns] | None]:
        return [kept_columns(getattr(recipe, name), folder / f"{name}.jsonl", resume=resume, argument=name) for name in names]

    read = processes.run_all(lambda: work() if processes.first else [])[0]
    if (columns := prepare_and_tell(loaded, read[0], recipe.scaffold)) is None:
        check_read(loaded.policy, None)
    return columns, columns if read[1] is None else prepare_and_tell(loaded, read[1], recipe.scaffold, argument=names[1])


def _in_first(processes: ProcessGroup, ledger: Ledger, work: Callable[[], Results]) -> Results:
    """Run ``work`` in the first process; all processes get its result and its turns of the ledger, and all fail if it does."""
    result, ledger.turn = processes.run_all(lambda: (work() if processes.first else {}, ledger.turn))[0]
    return result


def _scores_given(recipe: TrainRecipe, loaded: LoadedPolicy, resume: bool, resumed: bool) -> ScoredSamples | None:
    """The samples of the off-line updates; None without ``data``, or if on-line training has a checkpoint, so they are done."""
    if recipe.data is None or resumed:
        return None
    return scored_samples(recipe, loaded.policy, loaded.family.key, Path(recipe.output_dir), resume=resume)


def _offline(recipe: TrainRecipe, policy: Any, scored: ScoredSamples, metadata: Columns, resume: bool) -> OfflineTrainer:
    """The trainer of the off-line updates, which change ``policy`` in place."""
    options: dict[str, Any] = {"elbo_draws": recipe.elbo_draws, "metadata": metadata, "resume": resume}
    if (loss_type := recipe.grpo.loss_type) in ("cispo", "sapo"):
        told = "bounds no ratio, so that off-line the log-probs of bad samples can fall without limit"
        print_notes([f"loss_type: {loss_type} {told}; grpo, dapo and dr_grpo have a bound"])
    return offline_trainer(policy, scored, recipe, recipe.grpo, Path(recipe.output_dir), **options)


def _learn(trainer: GRPOTrainer, offline: OfflineTrainer | None, ledger: Ledger, kept_calls: int) -> None:
    """Off-line updates, if there are any, and then on-line training from the weights that they end with."""
    if offline is not None:
        offline.train()
        trainer.state.begin_here()
    with reserved(ledger, kept_calls):
        trainer.train()


def _train_offline(
    recipe: TrainRecipe,
    loaded: LoadedPolicy,
    scored: ScoredSamples,
    start: Any,
    evaluations: Evaluations,
    resume: bool,
) -> Results:
    """A run without rewards: off-line updates alone."""
    metadata = {**loaded.metadata, "policy": recipe.policy, "offline_steps": recipe.offline_steps}
    offline = _offline(recipe, loaded.policy, scored, metadata, resume)
    evaluations.before(start)
    if resume and offline.step < recipe.offline_steps:
        withdraw_export(evaluations.folder)
    offline.train()
    return _finish(evaluations, without_lora(loaded.policy), metadata, recipe.offline_steps)


def _finish(evaluations: Evaluations, trained: Any, metadata: Columns, updates: int) -> Results:
    """Export the policy, measure it and write the report."""
    from discrete_grpo.runs.report.report import write_report

    folder, best = evaluations.folder, without_likelihood(trained)
    save(folder / "policy", best, metadata=metadata)
    result = evaluations.after(best, updates)
    write_report(folder, render=evaluations.family.draw)
    if result:
        print_table(f"{folder}", result)
    return result
