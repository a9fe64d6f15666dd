#!/usr/bin/env bash
# Build the wheel, install it alone into another folder, and use it from there: import, data files, command line.
set -euo pipefail
python=${1:-python3}
source=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$python" -m pip wheel --quiet --no-deps --disable-pip-version-check --wheel-dir "$work/dist" "$source"
"$python" -m pip install --quiet --no-deps --disable-pip-version-check --target "$work/site" "$work"/dist/*.whl
mkdir "$work/elsewhere" && cd "$work/elsewhere"
export PYTHONPATH="$work/site"
"$python" - "$work/site" <<'PY'
import pathlib
import sys

import discrete_grpo
import discrete_grpo.datasets.enumeration as enumeration
import discrete_grpo.models.graph_transformer

site = pathlib.Path(sys.argv[1]).resolve()
for module in (discrete_grpo, enumeration, discrete_grpo.models.graph_transformer):
    assert site in pathlib.Path(module.__file__).resolve().parents, module.__file__
assert len(enumeration.load_enumerated(5)) > 500
assert any(discrete_grpo.sample(discrete_grpo.load_policy("qm9-small"), 8))
assert not (site / "models").exists() and not (site / "datasets").exists(), "top-level names leaked into the wheel"
PY
"$python" -m discrete_grpo.cli list
"$python" -m discrete_grpo.cli sample qm9-small -n 4 --out samples.smi
test -s samples.smi
"$python" - <<'PY'
from discrete_grpo.cli import main

for words in (
    ("smiles-zinc", "-n", "8", "--out", "smiles.smi", '--columns={"scaffold": "c1ccccc1", "MolLogP": 2}'),
    ("fill-in", "-n", "2", "--out", "fills.csv", "--columns=fill-in/prompts.jsonl"),
    ("digits", "-n", "2", "--out", "digits.csv", '--columns={"label": 3}'),
):
    assert main(["sample", *words]) == 0, words
PY
test -s smiles.smi
echo "wheel: ok"
