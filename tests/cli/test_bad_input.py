"""Every kind of bad input is one line, and nothing is made before it is found."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from discrete_grpo.cli import main
from discrete_grpo.recipes.search import SearchRecipe, run_search
from discrete_grpo.recipes.train import TrainRecipe, run_train
from tests.command_line import PRETRAIN, Refuse, outcome, train

pytestmark = pytest.mark.usefixtures("here")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("trian demo", "command: 'trian' is unknown; did you mean 'train'? known: train, pretrain, pretrain-graphs"),
        ("train dmo", "preset: 'dmo' is unknown; did you mean 'demo'?"),
        ("train enumerated-tiny", "preset: 'enumerated-tiny' is unknown"),
        ("sft qm9-small", "it is a bundled policy, which is given as --policy=qm9-small; sft has no presets, expected options"),
        ("search goood.smi", "preset: 'goood.smi' is unknown; search has no presets, expected options alone or a YAML file"),
        ("sft good.smi", "it is a file; data are given as --data=good.smi; sft has no presets"),
        ("train qm9-small", "it is a bundled policy, which is given as --policy=qm9-small; known: demo,"),
        ("train nofile.yaml", "preset: file 'nofile.yaml' does not exist"),
        ("train --config=nofile.yaml", "nofile.yaml"),
        ("train demo extra", "unrecognized arguments: extra"),
        ("train demo pool.yaml", "unrecognized arguments: pool.yaml; a further file is given as --config=pool.yaml"),
        ("pretrain-text --long_lines=split", "long_lines: 'split', expected 'error' without a block_size"),
        ("pretrain --data=nosuch.smi", "data: 'nosuch.smi' is no file"),
        ("pretrain-smiles --data=nosuch.smi", "data: 'nosuch.smi' is no file"),
        ("pretrain-text --data=nosuch.txt", "data: 'nosuch.txt' is no file"),
        ("preprocess nosuch.smi --output_dir=o", "data: 'nosuch.smi' is no file"),
        ("pretrain --data=empty.smi", "data: 'empty.smi' holds no molecules"),
        (
            "pretrain --data=bad.smi",
            "data: 'bad.smi' has 1 of 4 lines that are no molecule (25.0%, max_broken 5.0%): line 3: 'nonsense(('",
        ),
        ("pretrain --data=binary.smi", "data: 'binary.smi' cannot be read as text"),
        ("pretrain --data=plain.smi.gz", "data: 'plain.smi.gz' cannot be read as text"),
        ("pretrain --data=good.smi --network.heads=3", "width: 128, expected a multiple of heads (3)"),
        ("pretrain --data=good.smi --num_steps=0", "num_steps: 0, expected 1 to 10000"),
        ("pretrain --noise=pink", "noise: 'pink', expected one of 'uniform', 'marginal', 'absorbing'"),
        ("pretrain --max_atoms=0", "max_atoms: 0, expected 1 to 7"),
        ("pretrain --pretrain.batch_size=0", "batch_size: 0, expected at least 1"),
        ("pretrain --pretran.batch_size=8", "unknown field 'pretran.batch_size'; did you mean 'pretrain.batch_size'?"),
        ("resume nosuch", "run: nosuch: no such folder, expected a run folder of a command such as 'discrete-grpo train'"),
        ("resume .", "run: . is no run folder"),
        ("report nosuch", "run: nosuch is no run folder"),
        ("report folder", "run: folder is no run folder"),
        ("resume", "the following arguments are required: run"),
        ("evaluate nosuch.smi", "file: 'nosuch.smi' is no file"),
        ("evaluate empty.smi", "file: 'empty.smi' holds no molecules"),
        ("evaluate folder", "file: folder 'folder' has no file ending in .graphml"),
        ("evaluate good.smi --reference=nosuch.smi", "reference: 'nosuch.smi' is no file"),
        ("evaluate good.smi --out=nowhere/x.json", "out: folder nowhere does not exist"),
        ("evaluate bad.g6", "file: 'bad.g6' holds no sample of the kind graphs (2 were looked at)"),
        ("evaluate bad.sdf", "file: 'bad.sdf' holds no sample of the kind spatial (1 were looked at)"),
        ("evaluate good.smi --out=./good.smi", "out: 'good.smi' is read as file, expected another name"),
        ("evaluate good.smi --reference=bad.smi --out=bad.smi", "out: 'bad.smi' is read as reference, expected another name"),
        (
            "evaluate good.smi --suite=moses --reference=good.smi --train=bad.smi --out=bad.smi",
            "out: 'bad.smi' is read as train, expected another name",
        ),
        ("evaluate good.smi --refrence=good.smi", "unknown field 'refrence'; did you mean 'reference'?"),
        ("sample tiny -n 0 --out=o.smi", "n: 0, expected at least 1"),
        ("sample tiny -n -3 --out=o.smi", "n: -3, expected at least 1"),
        ("sample tiny -n few --out=o.smi", "n: 'few', expected int"),
        ("sample tiny --out=nowhere/o.smi", "out: folder nowhere does not exist"),
        ("sample tiny --out=folder", "out: folder is a folder, expected a file"),
        (
            "sample nosuch --out=o.smi",
            "policy: 'nosuch' is no checkpoint folder, run folder or bundled policy (bundled: qm9-small)",
        ),
        ("sample qm9-smal --out=o.smi", "did you mean 'qm9-small'?"),
        ("sample tiny --out=o.smi --scaffold=C((", "scaffold: 'C((', expected a valid SMILES"),
        ("sample tiny --out=o.smi --scaffold=*", "scaffold: '*' has an attachment point without a neighbour"),
        ("sample tiny --out=o.smi --scaffold=CCCCC", "scaffold: 'CCCCC' has 5 atoms, expected at most the policy's 4"),
        ("sample tiny --out=o.smi --scaffold=CS", "scaffold: 'CS', atom 'S' is not in the vocabulary"),
        ("sample tiny --out=o.smi --num_steps=1000000000", "num_steps: 1000000000, expected 1 to 10000"),
        ("sample tiny --out=o.smi --device=meta", "device: 'meta', expected one of this machine: cpu"),
        ("sample tiny --out=o.smi --num_steps=0", "num_steps: 0, expected 1 to 10000"),
    ],
)
def test_bad_input_is_one_line(refuse: Refuse, arguments: str, said: str) -> None:
    assert said in refuse(*arguments.split())
    assert not Path("o.smi").exists()
    assert not Path("runs/pretrain/run.json").exists()  # so that the corrected command can be given


def test_a_pipe_is_not_replaced_and_a_link_is_followed(refuse: Refuse) -> None:
    os.mkfifo("pipe.json")
    assert "out: pipe.json is a device or a pipe, expected a file" in refuse("evaluate", "good.smi", "--out=pipe.json")
    assert not Path("pipe.json").is_file()
    Path("link.json").symlink_to("named.json")
    Path("named.json").write_text("{}")
    assert main(["evaluate", "good.smi", "--out=link.json"]) == 0
    assert Path("link.json").is_symlink()
    assert "valid" in Path("named.json").read_text()
    Path("link.csv").symlink_to("stored")  # the ending is that of the link
    assert main(["sample", "tiny", "-n", "2", "--out=link.csv"]) == 0
    assert Path("link.csv").is_symlink()
    assert Path("stored").is_file()
    Path("ring.smi").symlink_to("ring.smi")
    assert "out: ring.smi is a link that leads back to itself" in refuse("sample", "tiny", "-n", "2", "--out=ring.smi")


def test_the_name_of_a_folder_in_runs_is_answered_with_its_path(refuse: Refuse) -> None:
    commands = ("resume demo", "sample demo --out=o.smi")
    Path("runs/demo").mkdir(parents=True)
    assert not any("runs/demo" in refuse(*command.split()) for command in commands)  # it holds no run
    Path("runs/demo/checkpoints").mkdir()
    Path("runs/demo/run.json").write_text("{}")
    for command in commands:
        assert refuse(*command.split()).endswith("; did you mean 'runs/demo'?")
    for name in ("nosuch", str(Path.cwd() / "runs/demo/run.json"), "runs/nosuch"):
        assert "did you mean" not in refuse("sample", name, "--out=o.smi")


def test_a_judge_in_the_place_of_a_preset_is_called_no_policy(refuse: Refuse) -> None:
    for name in ("fill-in-judge", "/" + "a" * 300):
        said = refuse("train", name)
        assert said.startswith(f"preset: '{name}' is unknown; ")
        assert "bundled policy" not in said


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        ("--grpo.num_generatons=16", "unknown field 'grpo.num_generatons'; did you mean 'grpo.num_generations'?"),
        ("--grpo.num_gen=16", "did you mean 'grpo.num_generations'?"),
        ("--num_generations=16", "unknown field 'num_generations'; did you mean 'grpo.num_generations'?"),
        ("--polcy=tiny", "unknown field 'polcy'; did you mean 'policy'?"),
        ("--grpo.num_generations=1", "num_generations: 1, expected at least 2"),
        ("--grpo.num_generations=many", "grpo.num_generations: 'many', expected int"),
        ("--grpo.generation_batch_size=10", "generation_batch_size: 10, expected a multiple of num_generations (4)"),
        ("--grpo.learning_rate=-1", "grpo.learning_rate: -1.0, expected more than 0"),
        ("--grpo.learning_rate=nan", "learning_rate"),
        ("--grpo.timestep_fraction=1.5", "grpo.timestep_fraction: 1.5, expected more than 0 and at most 1"),
        ("--grpo.epsilon=1e308", "epsilon: 1e+308, expected at most 1e+38 in size"),
        ("--lora.lora_alpha=1e300", "lora.lora_alpha: 1e+300, expected at most 1e+38 in size"),
        ("--lora.lora_alpha=16", "lora.lora_alpha: 16.0, expected 8.0 without adapters (lora.r is 0, which trains all weights)"),
        ("--lora.target_modules=[qkv]", "lora.target_modules: ['qkv'], expected all-linear without adapters (lora.r is 0, which"),
        ("--top_p=1e-300", "top_p: 1e-300, expected at least 1e-30, below which it is 0 in float32"),
        ("--grpo.loss_type=ppo", "grpo.loss_type: 'ppo', expected one of 'grpo', 'dapo', 'dr_grpo'"),
        ("--grpo.reward_weights=[1,2]", "reward_weights: 2 weights, expected one per reward (1)"),
        ("--num_steps=few", "num_steps: 'few', expected int or null"),
        ("--temperature=-1", "temperature: -1.0, expected more than 0"),
        ("--temperature=1e-40", "temperature: 1e-40, expected at least 1e-30, below which log-probs overflow"),
        ("--evaluation_samples=-1", "evaluation_samples: -1, expected at least 0"),
        ("--scaffold=CCCCC", "scaffold: 'CCCCC' has 5 atoms"),
        ("--scaffold=CS", "scaffold: 'CS', atom 'S' is not in the vocabulary"),
        ("--reward=qedd", "reward: 'qedd' is unknown; did you mean 'qed'?"),
        ("--reward=MoleculeReward", "reward: 'MoleculeReward' is unknown"),
        ("--reward=[qed,logpp]", "reward: 'logpp' is unknown; did you mean 'logp'?"),
        ("--reward=nowhere.f", "reward: nowhere.f is no reward: No module named 'nowhere'"),
        ("--reward=my_rewards.lenght", "reward: my_rewards.lenght is no reward: module 'my_rewards' has no attribute 'lenght'"),
        ("--reward=my_rewards.number", "reward: my_rewards.number is no reward"),
        ("--reward=broken_rewards.f", "reward: broken_rewards.f is no reward: invalid syntax"),
        (
            "--reward=ending_rewards.f",
            "reward: ending_rewards.f is no reward: ending_rewards.py ended the program when it was imported",
        ),
        ("--reward=Substructure", "is no reward: the following arguments are required: smarts"),
        ("--reward=my_rewards.Plain", "reward: my_rewards.Plain is no reward: expected a function, or a class with __call__"),
        ("--reward={class_path: my_rewards.Plain}", "my_rewards.Plain is no reward: expected a function, or a class with __call__"),
        ("--reward=my_rewards.noargs", "reward: noargs() (too many positional arguments), expected a function of a list"),
        ("--reward=tree_valid", "reward: tree_valid is for graphs, expected one for molecules, which the policy draws"),
        ("--offline_steps=5", "offline_steps: 5, expected none without data (a table of scored samples)"),
        ("--dry-run", "unknown field 'dry-run'; known: stop_above, stop_metric, stop_after, num_steps, temperature, top_k, top_p"),
        (
            "--device=cuda",
            "unknown field 'device'; a run takes the GPU that torch finds, and CUDA_VISIBLE_DEVICES chooses one, so there",
        ),
        ("--resume", "unknown field 'resume'; a run goes on with 'discrete-grpo resume RUN', so there is no such setting"),
        ("--temperature", "temperature: no value, expected --temperature=VALUE"),
        ("--grpo", "grpo: no value, expected --grpo=VALUE"),
        ("--config", "config: no value, expected --config=VALUE"),
        ("--elbo_draws=-5", "elbo_draws: -5, expected at least 1"),
        ("--output_dir=good.smi", "output_dir: good.smi is a file, expected the name of a folder to make"),
    ],
)
def test_bad_fields_of_a_run_are_one_line(refuse: Refuse, argument: str, said: str) -> None:
    assert said in refuse(*train(argument))
    assert not Path("run").exists()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("grpo:\n  num_generatons: 16\n", "unknown field 'grpo.num_generatons'; did you mean 'grpo.num_generations'?"),
        ("polcy: tiny\n", "unknown field 'polcy'; did you mean 'policy'?"),
        ("grpo:\n  num_generations: 1\n", "num_generations: 1, expected at least 2"),
        ("grpo: [1, 2\n", "Problems parsing config"),
        ("3\n", "config: 'mine.yaml' holds 3, expected a mapping of fields"),
        ("# nothing\n", "config: 'mine.yaml' holds no settings, expected a mapping of fields"),
        ("columns: {label: 3}\n", "columns: '{label: 3}', expected str or a list of mappings or null"),
        ("grpo:\n  max_steps: 1\n  max_steps: 2\n", "'max_steps' is given twice, in lines 2 and 3, expected once"),
        (
            "evaluation_samples: 0\ngrpo: {seed: 1}\nevaluation_samples: 3\n",
            "'evaluation_samples' is given twice, in lines 1 and 3",
        ),
        ("grpo: {max_steps: 1, max_steps: 2}\n", "'max_steps' is given twice, in lines 1 and 1, expected once"),
        ("reward: qedd\n", "reward: 'qedd' is unknown; did you mean 'qed'?"),
    ],
)
def test_bad_fields_of_a_file_are_one_line(refuse: Refuse, text: str, said: str) -> None:
    Path("mine.yaml").write_text(text)
    for arguments in (["mine.yaml"], ["--config=mine.yaml"], ["--config", "mine.yaml"]):
        assert said in refuse("train", *arguments, "--policy=tiny", "--output_dir=run")
        assert not Path("run").exists()


def edit(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        change(config)
        (folder / "config.json").write_text(json.dumps(config))

    return apply


def without_a_tensor(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    del weights[min(weights)]
    save_file(weights, folder / "model.safetensors")


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda f: os.truncate(f / "model.safetensors", 100), "model.safetensors cannot be read"),
        (
            lambda f: os.truncate(f / "model.safetensors", (f / "model.safetensors").stat().st_size - 8),
            "the file is missing or truncated",
        ),
        (lambda f: (f / "model.safetensors").unlink(), "the file is missing or truncated"),
        (lambda f: os.truncate(f / "config.json", 100), "config.json is no JSON"),
        (without_a_tensor, "does not fit the policy: network.blocks.0"),
        (
            edit(lambda c: c["metadata"]["statistics"].update(vocabulary=["C", "N", "O"])),
            "vocabulary of 3 atom types, expected the policy's 4",
        ),
        (edit(lambda c: c["metadata"]["statistics"].pop("vocabulary")), "has molecule statistics that cannot be read"),
        (edit(lambda c: c["metadata"].pop("statistics")), "has no molecule statistics"),
        (edit(lambda c: c.pop("metadata")), "has no metadata"),
        (edit(lambda c: c.pop("policy")), "has no policy"),
        (edit(lambda c: c.update(format=9)), "has format 9, expected 1"),
        (
            edit(lambda c: [c.pop("format"), c.update(model_type="gpt2")]),
            "import it by: discrete-grpo import tiny --from=huggingface",
        ),
        (edit(lambda c: c["policy"].update(class_path="os.system")), "'os.system' is outside the trusted packages"),
    ],
)
def test_a_damaged_checkpoint_is_one_line(refuse: Refuse, damage: Callable[[Path], Any], said: str) -> None:
    damage(Path("tiny"))
    assert said in refuse("sample", "tiny", "--out=o.smi")
    assert said in refuse(*train())
    assert not Path("run").exists()
    assert not Path("o.smi").exists()


def test_debug_shows_the_traceback() -> None:
    with pytest.raises(ValueError, match="preset: 'dmo' is unknown"):
        main(["--debug", "train", "dmo"])
    with pytest.raises(FileNotFoundError):
        main(["evaluate", "nosuch.smi", "--debug"])


def test_a_failure_of_any_kind_is_one_line(refuse: Refuse, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*arguments: Any, **options: Any) -> None:
        raise LookupError("two\nlines")

    monkeypatch.setattr("discrete_grpo.recipes.evaluate.evaluate_file", fails)
    assert refuse("evaluate", "good.smi") == "LookupError: two lines"


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        ("my_rewards:Nope", "policy: module 'my_rewards' has no attribute 'Nope'"),
        ("my_rewards:Plain", "policy: Plain is no torch.nn.Module"),
    ],
)
def test_an_error_that_names_its_argument_is_told_without_its_kind(refuse: Refuse, policy: str, said: str) -> None:
    assert refuse(*train(policy=policy)).startswith(said)


def test_a_run_is_never_overwritten(refuse: Refuse) -> None:
    assert main(train()) == 0
    before = outcome("run")
    line = refuse(*train("--grpo.seed=7"))
    assert line.startswith("output_dir: run already holds a run; continue it with 'discrete-grpo resume run'")
    assert main(["resume", "run"]) == 0  # a finished run stays what it is
    assert outcome("run") == before


@pytest.mark.parametrize("several", [False, True])
def test_a_reward_that_cannot_be_made_is_one_line(several: bool, refuse: Refuse) -> None:
    spec = "{class_path: discrete_grpo.rewards.judge.Judge, init_args: {checkpoint: nobody}}"
    said = refuse(*train(f"--reward={[spec] if several else spec}".replace("'", "")))
    assert "reward: judge: 'nobody' is no checkpoint folder, run folder or bundled judge" in said
    assert "Namespace" not in said


LEFT_BY_ANOTHER_RUN = [
    "evaluation.json",
    "metrics.jsonl",
    "samples.csv.gz",
    "ledger.sqlite",
    "policy",
    "checkpoints",
    "benchmark.json",
]


@pytest.mark.parametrize("name", LEFT_BY_ANOTHER_RUN)
def test_results_of_another_run_are_not_taken_for_this_runs(name: str, refuse: Refuse) -> None:
    path = Path("run") / name
    path.mkdir(parents=True) if "." not in name else path.parent.mkdir()
    if "." in name:
        path.write_text('{"before": {"reward": 99.0}}')
    for arguments in (train(), ["search", "--policy=tiny", "--output_dir=run"], ["pretrain", *PRETRAIN, "--output_dir=run"]):
        said = refuse(*arguments)
        assert f"output_dir: run holds results of another run ({name}), expected a folder without them" in said
    assert [p.name for p in Path("run").iterdir()] == [name]
    with pytest.raises(ValueError, match="holds results of another run"):
        run_train(TrainRecipe("tiny", output_dir="run"))
    with pytest.raises(ValueError, match="holds results of another run"):
        run_search(SearchRecipe("tiny", output_dir="run"))


@pytest.mark.parametrize("content", ["[1]", "null", '{"command": ["train"]}', '{"command": {"a": 1}}', "[" * 200_000])
def test_a_run_json_of_another_form_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str) -> None:
    (tmp_path / "run.json").write_text(content)
    assert main(["resume", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    unreadable = "command" not in content
    told = f"run: {tmp_path / 'run.json'} is damaged (" if unreadable else f"run: {tmp_path} is no run folder"
    assert said.startswith(f"discrete-grpo: error: {told}")
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("metrics.jsonl", "is of a run made from Python, expected one of a command; call it again with resume=True"),
        ("benchmark.json", "is of a benchmark, expected one of a run; to go on, give the same command again"),
        ("config.yaml", "is of a command that was stopped while it began; to go on, give the same command again"),
        ("notes.txt", "is no run folder of a command such as 'discrete-grpo train'"),
    ],
)
def test_what_no_command_can_resume_is_told_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, said: str) -> None:
    (tmp_path / name).write_text("{}\n")
    assert main(["resume", str(tmp_path)]) == 2
    assert capsys.readouterr().err == f"discrete-grpo: error: run: {tmp_path} {said}\n"


def test_a_failure_without_a_text_is_told_by_its_kind(refuse: Refuse, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*arguments: Any, **options: Any) -> None:
        raise ValueError

    monkeypatch.setattr("discrete_grpo.recipes.evaluate.evaluate_file", fails)
    assert refuse("evaluate", "good.smi") == "ValueError"


def test_a_failure_of_a_library_is_told_with_its_kind(refuse: Refuse, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*arguments: Any, **options: Any) -> None:
        raise TypeError("unsupported operand: int and str")

    monkeypatch.setattr("discrete_grpo.recipes.evaluate.evaluate_file", fails)
    assert refuse("evaluate", "good.smi") == "TypeError: unsupported operand: int and str"
