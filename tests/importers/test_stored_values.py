"""Values that checkpoints of graph models store: numbers, shares and rates of another form are accepted or refused in one line."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from discrete_grpo.importers import import_defog, import_graph_grpo
from discrete_grpo.importers.graph_source import _stored_data
from discrete_grpo.importers.settings import Settings
from discrete_grpo.runs.checkpoint import CheckpointError
from tests.imported import QM9, defog, lightning, one_line
from tests.importers.test_graph_files import graph_grpo, infos


@pytest.mark.parametrize(
    ("counts", "said"), [(torch.tensor(1.0), "a single number"), (torch.tensor([0.0, math.nan, 1.0]), "NaN or infinity")]
)
def test_counts_that_are_no_shares_are_refused(tmp_path: Path, counts: Tensor, said: str) -> None:
    path = graph_grpo(tmp_path / "x.ckpt", defog(pooling="biased_std"), QM9, {9: 1.0}, 9)
    content = torch.load(path, weights_only=True)
    (name,) = (name for name in content["state_dict"] if name.endswith("node_count_prob"))
    content["state_dict"][name] = counts
    torch.save(content, path)
    with pytest.raises(CheckpointError, match=f"stores node_count_prob with {said}, expected a list of finite shares") as error:
        import_graph_grpo(path, dataset="qm9")
    one_line(error)


@pytest.mark.parametrize("stored", [[150.0], torch.tensor([150.0]), torch.tensor(150.0), 150])
def test_a_list_of_one_number_is_the_largest_weight(stored: Any) -> None:
    assert _stored_data(infos("qm9", max_weight=stored), "x").max_weight == 150.0


@pytest.mark.parametrize("stored", [[1.0, 2.0], "150", {"a": 1}, math.nan])
def test_a_largest_weight_that_is_no_number_is_refused(stored: Any) -> None:
    with pytest.raises(ValueError, match=r"^x: dataset_infos\.max_weight is .*, expected one positive number") as error:
        _stored_data(infos("qm9", max_weight=stored), "x")
    one_line(error)


@pytest.mark.parametrize("name", ["n_nodes", "node_types", "atom_decoder"])
def test_lists_that_are_foreign_objects_are_refused(name: str) -> None:
    with pytest.raises(
        ValueError, match=rf"^x: dataset_infos\.{name} is an object that is not read, such as a NumPy array"
    ) as error:
        _stored_data(infos("qm9") | {name: {}}, "x")
    one_line(error)


@pytest.mark.parametrize("stored", [50, torch.tensor(50), {}])
def test_a_stored_number_may_be_a_tensor(stored: Any) -> None:
    settings = Settings("x", {"model": {"diffusion_steps": stored}})
    if stored != {}:
        assert settings.whole("num_steps", None, "model", "diffusion_steps", 500).value == 50
        return
    with pytest.raises(CheckpointError, match=r"stores model\.diffusion_steps as an object that is not read, expected a number"):
        settings.whole("num_steps", None, "model", "diffusion_steps", 500)


@pytest.mark.parametrize("name", ["eta", "omega"])
@pytest.mark.parametrize("read", [import_defog, import_graph_grpo])
def test_rates_that_are_text_are_refused(tmp_path: Path, name: str, read: Callable[..., Any]) -> None:
    path = lightning(tmp_path / "x.ckpt", defog()[0])
    with pytest.raises((ValueError, TypeError), match=name) as error:  # TypeError: the beartype run
        read(path, dataset="qm9", **{name: "0.1"})
    assert not isinstance(error.value, TypeError) or "beartype" in type(error.value).__module__
