"""Options of imports that do not fit, told in one line by the names that the command has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from discrete_grpo.cli import main
from discrete_grpo.importers import import_checkpoint


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("--from=molgptt", "from: 'molgptt', expected one of huggingface, molgpt, reinvent, digress, defog, graph-grpo, midi; "),
        ("--from=molgptt", "did you mean 'molgpt'?"),
        ("--from=molgpt", "vocabulary: None, expected a value, which molgpt needs"),
        ("--from=reinvent --heads=3", "heads: 3, expected none: reinvent has no options"),
        ("--from=molgpt --vocabulary=v --eta=3", "eta: 3.0, expected none: molgpt has vocabulary, heads, properties, start"),
    ],
)
def test_wrong_options_of_the_command(arguments: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["import", "w.pt", f"--out={tmp_path / 'out'}", *arguments.split()]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_an_unknown_source_is_told_with_the_nearest(tmp_path: Path) -> None:
    source: Any = "defogg"
    with pytest.raises(ValueError, match=r"source: 'defogg', expected one of .*; did you mean 'defog'\?"):
        import_checkpoint(tmp_path, source, tmp_path / "out")
