"""What cannot be benchmarked is refused in one line, before any job starts."""

from __future__ import annotations

import errno
import importlib
import json
import linecache
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from discrete_grpo.benchmarking import checks, runner
from discrete_grpo.benchmarking.folder import PLAN, ROW
from discrete_grpo.benchmarking.method import as_method
from discrete_grpo.benchmarking.plan import Request, make_plan
from discrete_grpo.benchmarking.runner import benchmark
from discrete_grpo.benchmarking.suites import SUITES
from discrete_grpo.cli import main
from discrete_grpo.recipes.loading import load, load_policy
from discrete_grpo.rewards.task import Task
from tests.benchmarking.parts import CARBONS, OXYGENS, WALK, carbons

PHOSPHORUS = Task("phosphorus", "toy", "atoms", "", carbons, elements=frozenset({"C", "P", "Na"}))
TEXTS = Task("letters", "toy", "letters", "", len, kind="text")
GRAPHS = Task("edges", "toy", "edges", "", len, kind="graphs")


def refused(**request: Any) -> str:
    given: dict[str, Any] = {"suite": [CARBONS], "methods": [WALK], "budget": 100, "output_dir": "nowhere"}
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        make_plan(Request(**(given | request)))
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        ({"suite": "pno"}, "suite: 'pno' is unknown; did you mean 'pmo'?"),
        ({"suite": "pmo", "tasks": ["zaleplonmpo"]}, "tasks: 'zaleplonmpo' is unknown; did you mean 'zaleplon_mpo'?"),
        ({"suite": "pmo", "tasks": ["qed", "qed"]}, "tasks: 'qed' is given twice"),
        ({"suite": "pmo", "tasks": []}, "tasks: no names, expected at least one of"),
        ({"suite": 3}, "suite: 3, expected the name of a suite, a Task, or several"),
        ({"suite": [CARBONS, CARBONS]}, "suite: two are named 'carbons', expected different names"),
        ({"methods": ["best-of-priors"]}, "methods: 'best-of-priors' is unknown; did you mean 'best-of-prior'?"),
        ({"methods": [WALK, WALK]}, "methods: two are named 'walk'"),
        ({"methods": []}, "methods: no names"),
        ({"methods": [7]}, "methods: 7, expected the name of a method"),
        ({"methods": [Task]}, "methods: <class 'discrete_grpo.rewards.task.Task'>, expected the name of a method"),
        (
            {"methods": [lambda task, policy, ledger: None]},
            "methods: <lambda>(task, policy, ledger) (too many positional arguments)",
        ),
        ({"suite": []}, "suite: an empty list, expected the name of a suite, a Task, or several"),
        (
            {"suite": [TEXTS], "methods": ["best-of-prior"]},
            "policy: None, expected a policy that makes samples for tasks of the kind text",
        ),
        ({"methods": [replace(WALK, name="../up")]}, "methods: '../up', expected letters, digits"),
        ({"budget": 9}, "budget: 9, expected at least 10, the first population of walk"),
        ({"budget": 0}, "budget: 0, expected at least 1"),
        ({"seeds": [0, 1, 0]}, "seeds: 0 is given twice"),
        ({"seeds": []}, "seeds: an empty list"),
        ({"seeds": [-1]}, "seeds: -1, expected 0 to 4294967295"),
        ({"seeds": [2**32]}, "seeds: 4294967296, expected 0 to 4294967295"),
        ({"trusted": "a.b"}, "trusted: 'a.b', expected a list of types, such as ['a.b']"),
        ({"seeds": [0.5]}, "seeds: 0.5, expected a whole number, 0 to 4294967295"),
        ({"seeds": 0}, "seeds: 0, expected a list of whole numbers"),
        ({"budget": 5.5}, "budget: 5.5, expected a whole number, at least 1"),
        ({"tasks": "qed"}, "tasks: 'qed', expected a list of names and tasks, such as ['qed']"),
        ({"methods": "random"}, "methods: 'random', expected a list of methods, such as ['random']"),
        ({"suite": "pmo", "exhaustiveness": 3}, "exhaustiveness: 3, expected none, since the tasks of pmo dock nothing"),
        ({"warm_start": 5}, "warm_start: 5 does not exist, expected a SMILES file"),
        ({"jobs": 0}, "jobs: 0, expected at least 1"),
        ({"job_timeout": 0.0}, "job_timeout: 0.0, expected more than 0"),
        ({"output_dir": " "}, "output_dir: ' ', expected the name of a folder"),
        ({"screen": "none.smi"}, "screen: 'none.smi' does not exist, expected a SMILES file"),
        ({"suite": [GRAPHS], "methods": ["random"]}, "methods: random works with molecules, expected one for graphs (task edges)"),
        ({"suite": "docking", "tasks": ["docking-parp1"]}, "receptors: none given, expected the folder of the prepared"),
        ({"suite": "docking", "receptors": "nowhere"}, "receptors: 'nowhere' is no folder, expected the folder of the prepared"),
        ({"suite": "docking", "tasks": ["docking-fa7"], "receptors": "."}, "receptors: '.' holds no fa7.pdbqt or fa7.pdbqt.gz"),
        ({"suite": "docking", "tasks": ["docking-parp"]}, "tasks: 'docking-parp' is unknown; did you mean 'docking-parp1'?"),
        ({"suite": "pmo", "receptors": "."}, "the tasks of pmo dock nothing"),
        ({"suite": "pmo", "reference": "x.smi"}, "reference: 'x.smi', expected none, since the tasks of pmo dock nothing"),
        ({"suite": "guacamol", "classifiers": "."}, "classifiers: '.', expected none, since no task of guacamol has a classifier"),
        ({"suite": "guacamol", "trusted": ["a.b"]}, "trusted: ('a.b',), expected none, since no task of guacamol has a classifier"),
        ({"suite": "pmo", "trusted": ["a.b"]}, "trusted: ['a.b'], expected none without a folder of classifiers"),
        ({"suite": "pmo", "tasks": ["gsk3b"]}, "classifiers: none given, expected the folder of gsk3b.skops or gsk3b.onnx"),
        ({"suite": "pmo", "classifiers": "nowhere"}, "classifiers: 'nowhere' holds none of drd2.skops, gsk3b.skops, jnk3.skops"),
        ({"receptors": "."}, "receptors: '.', expected none, since tasks of your own have their settings"),
        ({"methods": ["random"], "policy": "smiles-zink"}, "policy: 'smiles-zink' is no checkpoint folder"),
        (
            {"suite": [PHOSPHORUS], "methods": ["best-of-prior"], "policy": "qm9-small"},
            "policy: qm9-small cannot make the atoms Na, P",
        ),
        ({"suite": [PHOSPHORUS], "methods": ["best-of-prior"]}, "policy: smiles-zinc cannot make the atoms Na of task phosphorus"),
        (
            {"suite": "graphs", "tasks": ["tree_path"], "methods": ["best-of-prior"], "policy": "tree-64"},
            "policy: tree-64 draws graphs of 64 nodes, expected one of graphs of 16 for task tree_path",
        ),
        ({"methods": ["best-of-prior"], "policy": "tree-16"}, "policy: tree-16 makes graphs, expected a policy of molecules"),
        ({"methods": ["best-of-prior"], "policy": "smiles-zink"}, "policy: 'smiles-zink' is no checkpoint folder"),
    ],
)
def test_bad_input_is_one_line(request_: dict[str, Any], said: str) -> None:
    assert said in refused(**request_)


def test_a_folder_without_the_classifier_of_a_task_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("discrete_grpo.rewards.classifier.classifier_tasks", lambda *a, **k: {"gsk3b": PHOSPHORUS})
    said = refused(suite="pmo", tasks=["drd2"], classifiers="mine")
    assert said == "classifiers: 'mine' holds gsk3b only, expected drd2.skops or drd2.onnx in it for task drd2"


def test_a_method_for_other_policies_is_refused() -> None:
    only = replace(WALK, needs_policy=True, policy_kinds=("tokens",))
    said = refused(methods=[only], policy="qm9-small")
    assert said == "policy: qm9-small is a graph policy, expected a policy of tokens for method walk"


def test_the_elements_of_policies() -> None:
    zinc = checks.policy_elements(load("smiles-zinc"))
    assert zinc == frozenset({"C", "N", "O", "F", "P", "S", "Cl", "Br", "I"})
    assert checks.policy_elements(load("qm9-small")) == frozenset({"C", "N", "O", "F"})
    assert checks.policy_elements(load("tree-16")) is None
    assert {task.elements <= zinc for task in SUITES["pmo"].tasks().values()} == {True}


@pytest.mark.parametrize(
    ("fill", "said"),
    [
        (lambda folder: (folder / "run.json").write_text('{"command": "train"}'), "holds a run of another kind"),
        (lambda folder: (folder / "metrics.jsonl").touch(), "holds results of another run (metrics.jsonl)"),
        (
            lambda folder: (folder / PLAN).write_text('{"suite": "guacamol"}'),
            "holds a benchmark of guacamol",
        ),
    ],
)
def test_a_folder_of_something_else_is_refused(fill: Callable[[Path], Any], said: str, tmp_path: Path) -> None:
    fill(tmp_path)
    assert said in refused(output_dir=tmp_path)


def test_a_file_as_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "is a file, expected a folder" in refused(output_dir=tmp_path / "file")


def test_a_row_of_other_settings_is_refused_and_not_mixed(tmp_path: Path) -> None:
    def request(**more: Any) -> Request:
        base: dict[str, Any] = {"suite": [CARBONS], "methods": [WALK], "budget": 100, "seeds": [0], "output_dir": tmp_path}
        return Request(**(base | more))

    job = make_plan(request()).jobs[0]
    job.folder.mkdir(parents=True)
    (job.folder / ROW).write_text(json.dumps({**job.identity, "conditions": job.conditions}))
    assert len(make_plan(request()).done) == 1
    assert len(make_plan(request(suite=[CARBONS, OXYGENS], seeds=[0, 1])).done) == 1
    with pytest.raises(ValueError, match=r"budget was 100 and is 200.*or name another folder"):
        make_plan(request(budget=200))
    changed = replace(WALK, settings={"step": 3})
    with pytest.raises(ValueError, match=r"carbons, walk, seed 0 was made otherwise .settings.step was 1 and is 3.; remove .*walk"):
        make_plan(request(methods=[changed]))
    with pytest.raises(ValueError, match="task_source was"):
        make_plan(request(suite=[replace(CARBONS, version=2)]))


def test_rows_of_another_budget_or_policy_are_not_put_into_one_table(tmp_path: Path) -> None:
    def request(**more: Any) -> Request:
        base: dict[str, Any] = {"suite": [CARBONS], "methods": [WALK], "budget": 100, "seeds": [0], "output_dir": tmp_path}
        return Request(**(base | more))

    job = make_plan(request()).jobs[0]
    job.folder.mkdir(parents=True)
    (job.folder / ROW).write_text(json.dumps({**job.identity, "conditions": job.conditions}))
    make_plan(request(suite=[OXYGENS], seeds=[1]))
    make_plan(request(methods=[replace(WALK, name="other", settings={"step": 3})]))
    with pytest.raises(ValueError, match=r"row of carbons, walk, seed 0 was made otherwise .budget was 100 and is 200.; remove"):
        make_plan(request(suite=[OXYGENS], methods=[replace(WALK, name="other")], budget=200))
    with pytest.raises(ValueError, match=r"row of carbons, walk, seed 0 .*settings.step was 1 and is 2"):
        make_plan(request(suite=[OXYGENS], seeds=[1], methods=[replace(WALK, settings={"step": 2})]))


def test_a_suite_without_named_methods_takes_the_controls_that_fit_it(tmp_path: Path) -> None:
    def named(**request: Any) -> set[str]:
        return {job.method.name for job in make_plan(Request(seeds=[0], output_dir=tmp_path, **request)).jobs}

    assert named(suite="graphs") == {"best-of-prior"}
    assert named(suite="pmo", tasks=["qed"]) == {"best-of-prior", "random"}


def test_a_new_version_of_a_task_is_another_condition(tmp_path: Path) -> None:
    def conditions(version: int) -> dict[str, Any]:
        asked = Request([replace(CARBONS, version=version)], methods=[WALK], seeds=[0], output_dir=tmp_path)
        return make_plan(asked).jobs[0].conditions

    assert "task_version" not in conditions(1)
    assert conditions(2)["task_version"] == 2


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=r"output_dir: .*inner cannot be made .Not a directory., expected a folder to write in"):
        benchmark([CARBONS], methods=[WALK], budget=10, seeds=[0], output_dir=tmp_path / "file" / "inner")
    (tmp_path / "taken" / "benchmark.json").mkdir(parents=True)
    with pytest.raises(OSError, match=r"output_dir: .*taken cannot be written .Is a directory.; finished rows are kept"):
        benchmark([CARBONS], methods=[WALK], budget=10, seeds=[0], output_dir=tmp_path / "taken")


def test_a_full_disk_is_one_line_and_what_is_finished_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(runner, "portable", lambda job: "a test")
    asked: dict[str, Any] = {"methods": [WALK], "budget": 20, "seeds": [0], "output_dir": tmp_path}
    with monkeypatch.context() as patch:
        patch.setattr(runner, "write_page", full)
        with pytest.raises(OSError, match=r"output_dir: .* cannot be written .No space left on device.; finished rows are kept"):
            benchmark([CARBONS], **asked)
    assert len(make_plan(Request([CARBONS], **asked)).done) == 1
    assert len(benchmark([CARBONS], **asked).rows) == 1


def test_a_worker_that_cannot_be_started_is_no_matter_of_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused_start(*_: Any, **__: Any) -> None:
        raise OSError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr("discrete_grpo.benchmarking.processes.subprocess.Popen", refused_start)
    with pytest.raises(RuntimeError, match=r"jobs: a worker process cannot be started \(Resource temporarily unavailable\)"):
        benchmark("pmo", tasks=["qed"], methods=["random"], budget=20, seeds=[0], output_dir=tmp_path)


def test_a_policy_object_is_left_as_it_was_and_may_be_of_bfloat16(tmp_path: Path) -> None:
    policy = load_policy("smiles-zinc").bfloat16().train()
    request = Request([CARBONS], methods=["best-of-prior"], policy=policy, budget=20, seeds=[0], output_dir=tmp_path)
    assert make_plan(request).jobs[0].policy is policy
    assert policy.training


def test_jobs_go_by_seed_then_task_then_method(tmp_path: Path) -> None:
    found = make_plan(Request([CARBONS, OXYGENS], methods=[WALK, "random"], seeds=[1, 0], output_dir=tmp_path)).jobs
    assert [(job.seed, job.task.name, job.method.name) for job in found][:3] == [
        (1, "carbons", "walk"),
        (1, "carbons", "random"),
        (1, "oxygens", "walk"),
    ]
    assert [job.seed for job in found] == [1] * 4 + [0] * 4


def test_a_function_is_a_method_of_its_name() -> None:
    def my_way(task: Any, policy: Any, ledger: Any, seed: int) -> None:
        """Guesses."""

    method = as_method(my_way)
    assert (method.name, method.about, method.needs_policy) == ("my-way", "Guesses.", True)
    assert as_method(WALK) is WALK
    assert as_method(lambda task, policy, ledger, seed: None).name == "lambda"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"run": 3}, r"methods: 3, expected a function of \(task, policy, ledger, seed\), step, pause"),
        ({"settings": {"stepp": 1}}, r"methods: walk\(.*\(got an unexpected keyword argument 'stepp'\)"),
        ({"settings": [1]}, r"settings: \[1\], expected a mapping"),
        ({"least_budget": "3"}, r"least_budget: '3', expected a whole number, at least 1"),
        ({"task_kinds": ("molecule",)}, r"task_kinds: \('molecule',\), expected some of 'molecules', 'graphs', 'text' in a tuple"),
        ({"policy_kinds": "tokens"}, r"policy_kinds: 'tokens', expected some of 'tokens', 'graph', 'masked text' in a tuple"),
        ({"name": 3}, "name: a int, expected a text"),
    ],
)
def test_a_method_that_cannot_run_is_refused_when_it_is_made(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=f"^{said}"):
        replace(WALK, **{"settings": {"step": 1, "pause": 0.0}, **given})


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["benchmark"], "suite"),
        (["benchmark", "pmoo"], "suite: 'pmoo' is unknown; did you mean 'pmo'?"),
        (["benchmark", "pmo", "--seeds=a"], "seeds: 'a', expected a list of int"),
        (["benchmark", "pmo", "--method=grpo"], "unknown field 'method'; did you mean 'methods'?"),
        (["benchmark", "pmo", "--methods=[randm]"], "methods: 'randm' is unknown; did you mean 'random'?"),
        (["list", "task"], "task"),
    ],
)
def test_bad_words_of_the_command_are_one_line(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    told = capsys.readouterr().err
    assert told.startswith("discrete-grpo: error: ")
    assert told.count("\n") == 1
    assert said in told


def test_the_policy_is_part_of_the_conditions(tmp_path: Path) -> None:
    class Half(torch.nn.Module):
        """No policy."""

    with pytest.raises(TypeError, match="expected a policy"):
        make_plan(Request([CARBONS], methods=["best-of-prior"], policy=Half(), output_dir=tmp_path))
    found = make_plan(Request([CARBONS], methods=["best-of-prior", WALK], policy="smiles-zinc", output_dir=tmp_path)).jobs
    assert found[0].conditions["policy"] == "smiles-zinc"
    assert len(found[0].conditions["policy_sha256"]) == 16
    assert "policy" not in found[1].conditions


def test_rows_of_another_policy_or_version_are_refused_also_where_nobody_asks_for_them(tmp_path: Path) -> None:
    def request(**more: Any) -> Request:
        base: dict[str, Any] = {"suite": [CARBONS], "methods": [walk], "budget": 100, "seeds": [0], "output_dir": tmp_path}
        return Request(**(base | more))

    walk = replace(WALK, needs_policy=True)
    job = make_plan(request()).jobs[0]
    job.folder.mkdir(parents=True)
    other = [replace(walk, name="other")]
    for change, said in (({"version": "0.0.9"}, "version was 0.0.9"), ({"policy_sha256": "00"}, "policy_sha256 was 00")):
        (job.folder / ROW).write_text(json.dumps({**job.identity, "conditions": job.conditions | change}))
        with pytest.raises(ValueError, match=rf"row of carbons, walk, seed 0 was made otherwise \({said}"):
            make_plan(request(methods=other))
    row = {**job.identity, "conditions": {k: v for k, v in job.conditions.items() if not k.startswith("policy")}}
    (job.folder / ROW).write_text(json.dumps(row))  # a method without a policy
    assert len(make_plan(request(methods=other)).jobs) == 1


@pytest.mark.slow
def test_numbers_of_numpy_are_numbers(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"methods": [WALK], "output_dir": tmp_path}
    found = benchmark([CARBONS], budget=np.int64(30), seeds=list(np.arange(2)), jobs=np.int64(1), **settings)  # type: ignore[arg-type]
    assert [row["seed"] for row in found.rows] == [0, 1]
    assert [row["budget"] for row in found.rows] == [30, 30]
    again = benchmark([CARBONS], budget=30, seeds=[0, 1], **settings)
    assert again.rows == found.rows


SCRIPT = """
from discrete_grpo.rewards.task import Task

def half(mol):
    return 0.5

def first(task, policy, ledger, seed):
    ledger.score([task], ["C" * SIZE])

seeds = SEEDS
"""


def test_an_edit_beside_a_method_of_ones_own_is_no_other_method(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def method(size: int, seeds: list[int]) -> Any:
        path = tmp_path / "script_with_a_method.py"
        path.write_text(SCRIPT.replace("SIZE", str(size)).replace("SEEDS", str(seeds)))
        linecache.checkcache()
        sys.modules.pop(path.stem, None)
        importlib.invalidate_caches()
        shutil.rmtree(tmp_path / "__pycache__", ignore_errors=True)
        return importlib.import_module(path.stem).first

    monkeypatch.syspath_prepend(str(tmp_path))

    def sources(of: Any) -> set[str]:
        request = Request(suite=[CARBONS], methods=[of], budget=30, seeds=[0], output_dir=tmp_path / "run")
        return {job.conditions["method_source"] for job in make_plan(request).jobs}

    assert sources(method(3, [0])) == sources(method(3, [0, 1, 2])) != sources(method(4, [0]))


def test_a_policy_that_cannot_learn_from_given_samples_is_refused_before_any_job(tmp_path: Path) -> None:
    task = Task("length", "toy", "letters", "", len, kind="text")
    with pytest.raises(
        ValueError, match=r"^policy: fill-in is a masked text policy and learns from its own draws alone, expected one"
    ):
        make_plan(Request(suite=[task], methods=["hill-climb"], policy="fill-in", budget=300, output_dir=tmp_path))
    assert len(make_plan(Request(suite=[task], methods=["grpo"], policy="fill-in", budget=300, output_dir=tmp_path)).jobs) == 3


@pytest.mark.parametrize("name", ["results.md", "results.json", "results.html"])
def test_files_of_the_user_are_not_written_over(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("my notes")
    with pytest.raises(
        ValueError, match=rf"^output_dir: .* holds a file {name}, which would be overwritten, expected a folder without it"
    ):
        benchmark("enumerated", tasks=["enumerated_qed"], methods=["random"], budget=5, seeds=[0], output_dir=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == "my notes"


def test_a_policy_that_no_method_draws_from_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = Request("enumerated", tasks=["enumerated_qed"], methods=["random"], budget=5, seeds=[0], output_dir=tmp_path)
    make_plan(asked)
    assert capsys.readouterr().err == ""
    make_plan(replace(asked, policy="qm9-small"))
    assert "policy: not used, as none of the methods draws from a policy" in capsys.readouterr().err
