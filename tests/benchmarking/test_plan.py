"""The jobs of a request: lists that are given in any form, and conditions of rows of one's own tasks."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from discrete_grpo.benchmarking.folder import ROW
from discrete_grpo.benchmarking.plan import Request, make_plan
from discrete_grpo.recipes.families import SamplerOptions
from discrete_grpo.recipes.loading import load_policy
from discrete_grpo.rewards.task import Task
from tests.benchmarking.parts import CARBONS, OXYGENS, WALK, walk


def asked(tmp_path: Path, **changed: Any) -> Request:
    base: dict[str, Any] = {"suite": [CARBONS, OXYGENS], "methods": [WALK], "budget": 100, "seeds": [0], "output_dir": tmp_path}
    return Request(**(base | changed))


def test_tasks_and_methods_of_any_iterable_are_run_through_once(tmp_path: Path) -> None:
    given: dict[str, Any] = {"tasks": (name for name in ("oxygens", "carbons")), "methods": iter([WALK, "random"])}
    found = make_plan(asked(tmp_path, **given)).jobs
    both = ("walk", "random")
    assert [(job.task.name, job.method.name) for job in found] == [(task, name) for task in ("oxygens", "carbons") for name in both]
    mixed = make_plan(asked(tmp_path, suite="pmo", tasks=(one for one in (CARBONS, "qed")))).jobs
    assert [(job.suite, job.task.name) for job in mixed] == [("own", "carbons"), ("pmo", "qed")]


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        ({"methods": walk}, r"^methods: <function walk at .*>, expected a list of methods$"),
        ({"methods": WALK}, r"^methods: Method\(name='walk'.*\), expected a list of methods$"),
        ({"tasks": 5}, r"^tasks: 5, expected a list of names and tasks$"),
        ({"trusted": 5}, r"^trusted: 5, expected a list of types$"),
        ({"suite": "pmo", "classifiers": 5}, r"^classifiers: 5, expected the name of a folder$"),
        ({"suite": "docking", "receptors": 5}, r"^receptors: 5, expected the name of a folder$"),
        ({"suite": "docking", "reference": ["a"]}, r"^reference: \['a'\], expected the name of a SMILES file$"),
    ],
)
def test_what_is_no_list_and_no_name_is_one_line(request_: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=said):
        make_plan(asked(tmp_path, **request_))


def test_the_optimum_of_an_own_task_is_a_condition_of_its_rows(tmp_path: Path) -> None:
    (job,) = make_plan(asked(tmp_path, suite=[CARBONS])).jobs
    job.folder.mkdir(parents=True)

    def write(conditions: dict[str, Any]) -> None:
        (job.folder / ROW).write_text(json.dumps({**job.identity, "conditions": conditions}))

    write(job.conditions)
    assert len(make_plan(asked(tmp_path, suite=[CARBONS])).done) == 1
    for optimum in (0.5, None):
        with pytest.raises(ValueError, match=rf"task_optimum was 1\.0 and is {optimum}"):
            make_plan(asked(tmp_path, suite=[replace(CARBONS, optimum=optimum)]))
    write({name: value for name, value in job.conditions.items() if name != "task_optimum"})  # of an earlier version
    for optimum in (1.0, None):
        assert len(make_plan(asked(tmp_path, suite=[replace(CARBONS, optimum=optimum)])).done) == 1
    (row,) = make_plan(asked(tmp_path, suite="pmo", tasks=["qed"])).jobs
    assert "task_optimum" not in row.conditions


def test_settings_of_a_policy_are_a_condition_that_older_rows_lack(tmp_path: Path) -> None:
    def request(temperature: float) -> Request:
        policy = load_policy("smiles-zinc", SamplerOptions(temperature=temperature))
        return asked(tmp_path, suite=[CARBONS], methods=["best-of-prior"], policy=policy)

    (job,) = make_plan(request(1.0)).jobs
    job.folder.mkdir(parents=True)
    row = {**job.identity, "conditions": dict(job.conditions)}
    (job.folder / ROW).write_text(json.dumps(row))
    assert len(make_plan(request(1.0)).done) == 1
    for methods in (["best-of-prior"], [replace(WALK, name="other", needs_policy=True)]):
        with pytest.raises(ValueError, match=r"was made otherwise \(policy_settings_sha256 was "):
            make_plan(replace(request(0.5), methods=methods))
    del row["conditions"]["policy_settings_sha256"]
    (job.folder / ROW).write_text(json.dumps(row))
    assert len(make_plan(request(0.5)).done) == 1


def test_a_policy_may_be_a_path(tmp_path: Path) -> None:
    assert asked(tmp_path, policy=Path("runs/mine")).policy == str(Path("runs/mine"))


def test_rows_of_code_that_cannot_be_inspected_are_kept_with_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lock = threading.Lock()

    def score(mol: Any) -> float:
        return float(lock.locked())

    request = asked(tmp_path, suite=[Task("locked", "toy", "", "", score)])
    (job,) = make_plan(request).jobs
    assert job.conditions["task_source"] is None
    assert "cannot be inspected" not in capsys.readouterr().err
    job.folder.mkdir(parents=True)
    (job.folder / ROW).write_text(json.dumps({**job.identity, "conditions": job.conditions}))
    assert len(make_plan(request).done) == 1
    told = capsys.readouterr()
    assert "task 'locked': its code cannot be inspected, so that an edit would not be noticed" in told.out + told.err


def test_names_of_tasks_with_classifiers_are_not_free(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^tasks: one of your own is named 'drd2', as one of the suite is, expected another"):
        make_plan(asked(tmp_path, suite="pmo", tasks=[replace(CARBONS, name="drd2")]))


def test_rows_of_an_edited_task_are_refused_beside_other_seeds_and_methods(tmp_path: Path) -> None:
    (job,) = make_plan(asked(tmp_path, suite=[CARBONS])).jobs
    job.folder.mkdir(parents=True)
    row = {**job.identity, "conditions": dict(job.conditions)}
    (job.folder / ROW).write_text(json.dumps(row))
    more: tuple[dict[str, Any], ...] = ({"seeds": [1]}, {"methods": [replace(WALK, name="other")]})
    for change in more:
        assert len(make_plan(asked(tmp_path, suite=[CARBONS], **change)).jobs) == 1
        with pytest.raises(ValueError, match=r"row of carbons, walk, seed 0 was made otherwise \(task_source was "):
            make_plan(asked(tmp_path, suite=[replace(CARBONS, version=2)], **change))
    del row["conditions"]["task_optimum"]  # of an earlier version
    (job.folder / ROW).write_text(json.dumps(row))
    assert len(make_plan(asked(tmp_path, suite=[CARBONS], seeds=[1])).jobs) == 1


def test_functions_that_run_nothing_when_they_are_called_are_no_methods() -> None:
    async def waits(task: Any, policy: Any, ledger: Any, seed: int, step: int) -> None: ...

    def yields(task: Any, policy: Any, ledger: Any, seed: int, step: int) -> Any:
        yield ledger

    wrong: tuple[Any, ...] = (waits, yields)
    for run in wrong:
        with pytest.raises(ValueError, match="methods: other is a generator or a coroutine, expected a function that runs"):
            replace(WALK, name="other", run=run)
