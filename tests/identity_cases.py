"""Rewards in files of their own, and edits of them: each makes other scores. Run as a script, it scores them through a ledger.

A case is what its files hold before and after the edit; ``NAME`` in them stands for the name of the case, so that all cases can be
imported by one process. Each has a module ``NAME_reward`` with a function ``make()`` that gives the reward.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

HEAD = "import functools, enum, json\nfrom dataclasses import dataclass\nfrom pathlib import Path\n"
SCORE = "def score(samples, **columns): return [{} for s in samples]\ndef make(): return score\n"
Files = dict[str, str]


def case(text: str, old: str, new: str, others: Files | None = None) -> tuple[Files, Files]:
    """The reward module's text and other files, before and after an edit in the one of them that holds ``old``."""
    files = {"NAME_reward.py": HEAD + text} | (others or {})
    edited = [name for name, body in files.items() if old in body]
    assert len(edited) == 1, (old, edited)
    return files, files | {edited[0]: files[edited[0]].replace(old, new)}


LINEAR = (
    "import torch\nclass Net(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.scale = 2.0\n"
)
LINEAR += "        self.layer = torch.nn.Linear(1, 1, bias=False)\n        torch.nn.init.constant_(self.layer.weight, 3.0)\n"
LINEAR += "    def forward(self, x):\n        return self.layer(x).flatten() * self.scale + 1.0\n"
LINEAR += "    def encode(self, samples): return torch.tensor([[float(len(s))] for s in samples])\n"
LINEAR += "from discrete_grpo.rewards.judge import ModuleReward\ndef make(): return ModuleReward(Net(), output='logit')\n"
PROGRAM = "import json, sys\nimport weights\nfor line in sys.stdin:\n    q = json.loads(line)\n"
PROGRAM += "    print(json.dumps({'id': q['id'], 'reward': 1.0 + weights.SHIFT}), flush=True)\n"
EXTERNAL = "import sys\nfrom discrete_grpo.rewards.external import ExternalReward\n"
EXTERNAL += "def make(): return ExternalReward([sys.executable, str(Path(__file__).parent / 'run.py')])\n"

CASES: dict[str, tuple[Files, Files]] = {
    "body": case(SCORE.format("1.0"), "1.0", "2.0"),
    "constant": case("K = 1.0\n" + SCORE.format("K"), "K = 1.0", "K = 2.0"),
    "helper": case("def helper(s): return 1.0\n" + SCORE.format("helper(s)"), "return 1.0", "return 2.0"),
    "other_module": case(
        "import NAME_other\n" + SCORE.format("NAME_other.helper(s)"),
        "= 1.0",
        "= 2.0",
        {"NAME_other.py": "K = 1.0\ndef helper(s): return K\n"},
    ),
    "star_import": case("from NAME_other import *\n" + SCORE.format("K"), "K = 1.0", "K = 2.0", {"NAME_other.py": "K = 1.0\n"}),
    "late_import": case(
        "def late():\n    from NAME_other import K\n    return K\n" + SCORE.format("late()"),
        "= 1.0",
        "= 2.0",
        {"NAME_other.py": "K = 1.0\n"},
    ),
    "import_by_name": case(
        "import importlib\nother = importlib.import_module('NAME_other')\n" + SCORE.format("other.K"),
        "= 1.0",
        "= 2.0",
        {"NAME_other.py": "K = 1.0\n"},
    ),
    "two_modules_away": case(
        "import NAME_a\n" + SCORE.format("NAME_a.f()"),
        "= 1.0",
        "= 2.0",
        {"NAME_a.py": "import NAME_b\ndef f(): return NAME_b.K\n", "NAME_b.py": "K = 1.0\n"},
    ),
    "relative_import": case(
        "from NAME_pack.inner import K\n" + SCORE.format("K"),
        "= 1.0",
        "= 2.0",
        {
            "NAME_pack/__init__.py": "",
            "NAME_pack/inner.py": "from .deep import (\n    K,  # why\n)\n",
            "NAME_pack/deep.py": "K = 1.0\n",
        },
    ),
    "package_init": case(
        "from NAME_pack.inner import f\n" + SCORE.format("f()"),
        "lambda: 1.0",
        "lambda: 2.0",
        {
            "NAME_pack/__init__.py": "from . import inner\ninner.f = lambda: 1.0\n",
            "NAME_pack/inner.py": "def f(): return 0.0\n",
        },
    ),
    "table_of_functions": case(
        "def one(s): return 1.0\ndef two(s): return 2.0\nTABLE = {'a': one}\n" + SCORE.format("TABLE['a'](s)"),
        "'a': one",
        "'a': two",
    ),
    "order_of_a_table": case(
        "TABLE = {'C': 1.0, 'CC': 2.0}\n" + SCORE.format("next(v for k, v in TABLE.items() if s.startswith(k))"),
        "'C': 1.0, 'CC': 2.0",
        "'CC': 2.0, 'C': 1.0",
    ),
    "class_attribute": case(
        "class R:\n    k = 1.0\n    def __call__(self, samples, **c): return [self.k for s in samples]\ndef make(): return R()\n",
        "k = 1.0",
        "k = 2.0",
    ),
    "inherited_method": case(
        "from NAME_base import Base\nclass R(Base):\n"
        "    def __call__(self, samples, **c): return [self.one(s) for s in samples]\n"
        "def make(): return R()\n",
        "return 1.0",
        "return 2.0",
        {"NAME_base.py": "class Base:\n    def one(self, s): return 1.0\n"},
    ),
    "inherited_call": case(
        "class Base:\n    def __call__(self, samples, **c): return [1.0 for s in samples]\n"
        "class R(Base): pass\ndef make(): return R()\n",
        "[1.0",
        "[2.0",
    ),
    "static_method": case(
        "class R:\n    @staticmethod\n    def one(s): return 1.0\n"
        "    def __call__(self, samples, **c): return [self.one(s) for s in samples]\ndef make(): return R()\n",
        "return 1.0",
        "return 2.0",
    ),
    "class_method": case(
        "class R:\n    @classmethod\n    def one(cls, s): return 1.0\n"
        "    def __call__(self, samples, **c): return [self.one(s) for s in samples]\ndef make(): return R()\n",
        "return 1.0",
        "return 2.0",
    ),
    "property": case(
        "class R:\n    @property\n    def one(self): return 1.0\n"
        "    def __call__(self, samples, **c): return [self.one for s in samples]\ndef make(): return R()\n",
        "return 1.0",
        "return 2.0",
    ),
    "cached_property": case(
        "class R:\n    @functools.cached_property\n    def one(self): return 1.0\n"
        "    def __call__(self, samples, **c): return [self.one for s in samples]\ndef make(): return R()\n",
        "return 1.0",
        "return 2.0",
    ),
    "bound_method": case(
        "class R:\n    def __init__(self): self.k = 1.0\n    def score(self, samples, **c): return [self.k for s in samples]\n"
        "def make(): return R().score\n",
        "self.k = 1.0",
        "self.k = 2.0",
    ),
    "lru_cache": case("@functools.lru_cache\ndef helper(s): return 1.0\n" + SCORE.format("helper(s)"), "return 1.0", "return 2.0"),
    "decorator": case(
        "from NAME_deco import scaled\n@scaled\n" + SCORE.format("1.0"),
        "K = 1.0",
        "K = 2.0",
        {
            "NAME_deco.py": "import functools\nK = 1.0\ndef scaled(f):\n    @functools.wraps(f)\n"
            "    def inner(samples, **c): return [K * x for x in f(samples, **c)]\n    return inner\n"
        },
    ),
    "molecule_reward": case(
        "from discrete_grpo.rewards.molecules import molecule_reward\nK = 1.0\n@molecule_reward\ndef score(mol): return K\n"
        "def make(): return score\n",
        "K = 1.0",
        "K = 2.0",
    ),
    "default": case("def score(samples, k=1.0, **c): return [k for s in samples]\ndef make(): return score\n", "k=1.0", "k=2.0"),
    "keyword_default": case(
        "def score(samples, *, k=1.0, **c): return [k for s in samples]\ndef make(): return score\n", "k=1.0", "k=2.0"
    ),
    "closure": case(
        "def outer(k):\n    def score(samples, **c): return [k for s in samples]\n"
        "    return score\ndef make(): return outer(1.0)\n",
        "outer(1.0)",
        "outer(2.0)",
    ),
    "partial": case(
        "def score(samples, k, **c): return [k for s in samples]\ndef make(): return functools.partial(score, k=1.0)\n",
        "k=1.0",
        "k=2.0",
    ),
    "lambda": case("make = lambda: lambda samples, **c: [1.0 for s in samples]\n", "[1.0", "[2.0"),
    "nested_function": case(
        "def score(samples, **c):\n    def inner(s): return 1.0\n"
        "    return [inner(s) for s in samples]\ndef make(): return score\n",
        "return 1.0",
        "return 2.0",
    ),
    "swapped_parameters": case(
        "def part(a, b): return a - b\n" + SCORE.format("part(len(s), 10.0)"), "def part(a, b)", "def part(b, a)"
    ),
    "enum": case("class E(enum.Enum):\n    A = 1.0\n" + SCORE.format("E.A.value"), "A = 1.0", "A = 2.0"),
    "dataclass_field": case(
        "@dataclass\nclass R:\n    k: float = 1.0\n    def __call__(self, samples, **c): return [self.k for s in samples]\n"
        "def make(): return R()\n",
        "k: float = 1.0",
        "k: float = 2.0",
    ),
    "slots_of_a_base": case(
        "class Base:\n    __slots__ = ('k',)\nclass R(Base):\n    __slots__ = ()\n"
        "    def __init__(self): self.k = float(Path(__file__).with_name(X).stat().st_size)\n"
        "    def __call__(self, samples, **c): return [self.k for s in samples]\nX = 'si' + 'ze'\ndef make(): return R()\n",
        "one",
        "three",
        {"size": "one"},
    ),
    "state_from_elsewhere": case(
        "class R:\n    def __init__(self): self.k = json.loads(Path(__file__).with_name('k' + '.json').read_text())\n"
        "    def __call__(self, samples, **c): return [self.k for s in samples]\ndef make(): return R()\n",
        "1.0\n",
        "2.0\n",
        {"k.json": "1.0\n"},
    ),
    "global_from_elsewhere": case(
        "K = json.loads(Path(__file__).with_name('k' + '.json').read_text())\n" + SCORE.format("K['k']"),
        '{"k": 1.0}',
        '{"k": 2.0}',
        {"k.json": '{"k": 1.0}'},
    ),
    "data_file": case(
        "def table(): return json.loads((Path(__file__).parent / 'data' / 'k.json').read_text())\n" + SCORE.format("table()"),
        "1.0\n",
        "2.0\n",
        {"data/k.json": "1.0\n"},
    ),
    "path_attribute": case(
        "class R:\n    def __init__(self, path): self.path = path\n"
        "    def __call__(self, samples, **c): return [float(self.path.read_text()) for s in samples]\n"
        "def make(): return R(Path(__file__).with_suffix('.txt'))\n",
        "1.0\n",
        "2.0\n",
        {"NAME_reward.txt": "1.0\n"},
    ),
    "folder_attribute": case(
        "class R:\n    def __init__(self, path): self.path = path\n"
        "    def __call__(self, samples, **c): return [float((Path(self.path) / 'k.txt').read_text()) for s in samples]\n"
        "def make(): return R(str(Path(__file__).parent / 'model'))\n",
        "1.0\n",
        "2.0\n",
        {"model/k.txt": "1.0\n"},
    ),
    "forward": case(LINEAR, "+ 1.0", "+ 2.0"),
    "module_attribute": case(LINEAR, "scale = 2.0", "scale = 4.0"),
    "module_weights": case(LINEAR, "weight, 3.0", "weight, 4.0"),
    "program": case(EXTERNAL, "1.0 +", "2.0 +", {"run.py": PROGRAM, "weights.py": "SHIFT = 0.5\n"}),
    "module_of_a_program": case(EXTERNAL, "= 0.5", "= 1.5", {"run.py": PROGRAM, "weights.py": "SHIFT = 0.5\n"}),
    "inner_reward": case(
        "from discrete_grpo.rewards.combine import WeightedSum\nimport NAME_other\n"
        "def make(): return WeightedSum.of({NAME_other.score: 1.0})\n",
        "[1.0",
        "[2.0",
        {"NAME_other.py": "def score(samples, **c): return [1.0 for s in samples]\n"},
    ),
    "cached_as_a_reward": case(
        "import NAME_other\nclass R:\n    cached_as = staticmethod(NAME_other.score)\n"
        "    def __call__(self, samples, **c): return NAME_other.score(samples)\n"
        "def make(): return R()\n",
        "[1.0",
        "[2.0",
        {"NAME_other.py": "def score(samples, **c): return [1.0 for s in samples]\n"},
    ),
    "metaclass": case(
        "class Meta(type):\n    def one(cls): return 1.0\nclass R(metaclass=Meta):\n"
        "    def __call__(self, samples, **c): return [type(self).one() for s in samples]\ndef make(): return R()\n",
        "return 1.0",
        "return 2.0",
    ),
}


def write(root: Path, edited: bool) -> None:
    """All cases, as they are before or after their edits."""
    for name, versions in CASES.items():
        for path, text in versions[edited].items():
            file = root / name / path.replace("NAME", name)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text.replace("NAME", name))


def main(root: Path, cache: Path) -> None:
    """Print for every case the scores of a ledger, what the reward itself gives, and its identity before and after it was asked."""
    from discrete_grpo.rewards.cache import ScoreCache
    from discrete_grpo.rewards.identity import reward_identity
    from discrete_grpo.rewards.ledger import Ledger

    sys.dont_write_bytecode = True
    found: dict[str, dict[str, Any]] = {}
    for name in CASES:
        sys.path.insert(0, str(root / name))
        made = importlib.import_module(f"{name}_reward").make()
        ledger = Ledger(cache=ScoreCache(cache))
        first = reward_identity(made)
        scores = ledger.score([made], ["CC", "CCO"]).flatten().tolist()
        found[name] = {"served": scores, "true": list(made(["CC", "CCO"])), "identity": first, "later": reward_identity(made)}
        ledger.close()
        getattr(made, "close", lambda: None)()
    print(json.dumps(found))


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main(Path(sys.argv[1]), Path(sys.argv[2]))
