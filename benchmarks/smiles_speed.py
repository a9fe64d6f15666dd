"""Our GPT + TokenPolicy against a MolGPT-shaped generator and a cached GPT-2 of equal widths, in one process.

    python -m benchmarks.smiles_speed                     # the committed table: CPU, one thread, some minutes

Both sides have 8 layers, 8 heads, width 256, one property token and, in the conditional case, scaffolds. Weights are
random, so texts are given the lengths of a molecule set: an end is drawn for every row beforehand, and our network is
told to end there; the baseline takes its fixed number of steps in any case. Groups of 16 share a condition, as in GRPO.
Generation is compared with ``generate`` of ``transformers`` as well, which has a cache and is told the same ends.
Turns, ratios and the clock are as in ``graph_policy_speed``.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.baseline_cached import cached_gpt2, cached_sample, prompts
from benchmarks.baseline_smiles import PeerGPT, peer_log_probs, peer_sample
from benchmarks.common import ROOT, Clock, interleaved, paired_ratio, stamp, write_result
from discrete_grpo.core.categorical import score_sites
from discrete_grpo.core.loss import clipped_surrogate, grpo_loss, row_weights
from discrete_grpo.core.rollout import Rollout, group_contexts
from discrete_grpo.domains.tokenizer import BOS, EOS, Property, Tokenizer
from discrete_grpo.models.gpt import GPT, Cache, GPTConfig
from discrete_grpo.models.huggingface import transformers_library
from discrete_grpo.policies.tokens import TokenPolicy
from discrete_grpo.runs.console import print_table

SOURCES = (
    "models/gpt.py",
    "models/attention.py",
    "discrete_grpo/policies/tokens.py",
    "discrete_grpo/policies/truncation.py",
    "benchmarks/baseline_smiles.py",
    "benchmarks/baseline_cached.py",
    "benchmarks/smiles_speed.py",
)
LETTERS = "BCFHINOPSbcnops()[]=#-+1234"
BLOCK, SCAFFOLD = 54, 48  # MolGPT's for MOSES
GROUP = 16


@dataclass(frozen=True)
class Settings:
    """Settings of a run."""

    batch: int = 256
    chunk: int = 64
    layers: int = 8
    heads: int = 8
    width: int = 256
    mean_length: float = 36.0
    deviation: float = 7.0
    mean_scaffold: float = 25.0
    repeats: int = 2
    threads: int = 1
    seed: int = 0

    @property
    def clock(self) -> Clock:
        """Processor time with one thread, else the wall clock."""
        return "cpu" if self.threads == 1 else "wall"


class Scripted(nn.Module):
    """A network that ends row b's text with its ``lengths[b]``-th token: random weights, a real set's lengths."""

    def __init__(self, network: GPT, lengths: Tensor) -> None:
        super().__init__()
        self.network, self.lengths = network, lengths

    def cache(self, rows: int, prompt_length: int = 0) -> _ScriptedCache:
        """An empty cache that knows which row ends when."""
        return _ScriptedCache(self.network.cache(rows, prompt_length), self.lengths)

    def forward(self, tokens: Tensor, prompt: Tensor | None = None, properties: Tensor | None = None, cache: Any = None) -> Tensor:
        """The network's logits; in drawing, EOS is certain where a row ends and impossible before."""
        if cache is None:
            return self.network(tokens, prompt, properties)
        logits = self.network(tokens, prompt, properties, cache.inner)
        cache.step += 1
        logits[:, -1, EOS] = torch.where(cache.lengths == cache.step, 1e4, -1e4)
        return logits


class _ScriptedCache:
    def __init__(self, inner: Cache, lengths: Tensor) -> None:
        self.inner, self.lengths, self.step = inner, lengths, 0

    def select(self, rows: Tensor) -> None:
        self.inner.select(rows)
        self.lengths = self.lengths[rows]


class Case:
    """Both sides of one case, with the same conditions and lengths."""

    def __init__(self, conditional: bool, settings: Settings) -> None:
        s, self.settings = settings, settings
        generator = torch.Generator().manual_seed(s.seed)
        torch.manual_seed(s.seed)
        tokenizer = Tokenizer(tuple(LETTERS))
        lengths = torch.randn(s.batch, generator=generator) * s.deviation + s.mean_length
        lengths = lengths.round().long().clamp(10, BLOCK)
        config = GPTConfig(len(tokenizer), BLOCK, 1, s.layers, s.heads, s.width)
        self.columns = self._conditions(conditional, generator)
        scripted = Scripted(GPT(config), lengths)
        options: Any = {"max_length": BLOCK, "properties": [Property("p")], "prompt": "scaffold"}
        self.ours = TokenPolicy(scripted, tokenizer, **options).eval()
        self.scorer = TokenPolicy(scripted.network, tokenizer, **options).eval()
        self.contexts = group_contexts(len(self.columns), GROUP, self.columns)
        self.peer = PeerGPT(len(tokenizer), BLOCK, SCAFFOLD, s.layers, s.heads, s.width).eval()
        self.peer_prefix = self._peer_prefix(tokenizer, conditional)
        self.cached = cached_gpt2(len(tokenizer), BLOCK + SCAFFOLD + 2, s.layers, s.heads, s.width)
        self.cached_prompt = prompts([tokenizer.encode(c.columns.get("scaffold", "")) for c in self.contexts])
        self.lengths = lengths
        self.sample_cached()
        self.rollout = self.sample_ours()
        self.peer_tokens = self.sample_peer()
        self.advantage = torch.randn(s.batch, generator=generator)

    def _conditions(self, conditional: bool, generator: torch.Generator) -> list[dict[str, Any]]:
        """One a group: a property, and where asked for a scaffold of letters that stands for a real one's length."""
        groups = self.settings.batch // GROUP
        found: list[dict[str, Any]] = []
        for _ in range(groups):
            size = int((torch.randn((), generator=generator) * 5 + self.settings.mean_scaffold).round().clamp(6, SCAFFOLD))
            picked = torch.randint(len(LETTERS), (size,), generator=generator).tolist()
            found.append({"p": float(torch.randn((), generator=generator))})
            if conditional:
                found[-1]["scaffold"] = "".join(LETTERS[k] for k in picked)
        return found

    def _peer_prefix(self, tokenizer: Tokenizer, conditional: bool) -> tuple[Tensor | None, Tensor]:
        """The baseline's conditions: scaffolds padded to 48, and one property per row."""
        rows = [c.columns for c in self.contexts]
        properties = torch.tensor([[r["p"]] for r in rows])
        if not conditional:
            return None, properties
        ids = [tokenizer.encode(r["scaffold"]) for r in rows]
        return torch.tensor([row + [0] * (SCAFFOLD - len(row)) for row in ids]), properties

    def sample_ours(self) -> Rollout:
        """A batch of texts."""
        return self.ours.sample(self.contexts, generator=torch.Generator().manual_seed(1))

    def sample_peer(self) -> Tensor:
        """A batch of texts, the baseline's way."""
        start = torch.full((self.settings.batch, 1), BOS)
        return peer_sample(self.peer, start, *self.peer_prefix, torch.Generator().manual_seed(1))

    def sample_cached(self) -> Tensor:
        """A batch of texts, by ``generate`` of transformers."""
        return cached_sample(self.cached, self.cached_prompt, self.lengths, seed=1)

    def update_ours(self) -> None:
        """Gradient of the clipped surrogate, rows of like length together, as the trainer cuts them."""
        rollout, weight = self.rollout, row_weights(self.rollout.units, "dapo", self.rollout.max_units)
        self.scorer.zero_grad()
        for rows in torch.argsort(rollout.size, stable=True).split(self.settings.chunk):
            scores = score_sites(self.scorer.sites(rollout.index(rows)))
            grpo_loss(scores, None, self.advantage[rows], weight[rows], epsilon=0.2).loss.backward()

    def update_peer(self) -> None:
        """The same of the baseline: every row at full length, padding masked in the loss alone."""
        self.peer.zero_grad()
        length = self.rollout.units.sum(1)
        total = float(length.sum())
        for rows in torch.arange(self.settings.batch).split(self.settings.chunk):
            scaffold, properties = (None if c is None else c[rows] for c in self.peer_prefix)
            logp = peer_log_probs(self.peer, self.peer_tokens[rows], scaffold, properties, BOS)
            ratio = torch.exp(logp - logp.detach())
            inside = torch.arange(BLOCK) < length[rows][:, None]
            value, *_ = clipped_surrogate(ratio, self.advantage[rows][:, None], 0.2, 0.2)
            (torch.where(inside, value, 0.0).sum() / total).backward()


def measure(conditional: bool, settings: Settings) -> dict[str, Any]:
    """One row of the table."""
    case = Case(conditional, settings)
    row: dict[str, Any] = {
        "case": "property and scaffold" if conditional else "property only",
        "mean_length": float(case.rollout.units.sum(1).double().mean()),
    }
    jobs: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
        "generation": (case.sample_ours, case.sample_peer),
        "cached generation": (case.sample_ours, case.sample_cached),
        "update": (case.update_ours, case.update_peer),
    }
    for name, pair in jobs.items():
        ours, peer = interleaved(pair, settings.repeats, warmup=0)  # the constructor ran every drawer once
        ratio, low, high = paired_ratio(ours.by(settings.clock), peer.by(settings.clock))
        row[name] = {
            "ratio": ratio,
            "ratio_range": [low, high],
            "ratio_wall": paired_ratio(ours.wall, peer.wall)[0],
            "seconds": {"ours": asdict(ours), "baseline": asdict(peer)},
        }
    return row


def show(rows: Sequence[dict[str, Any]]) -> None:
    """Ratios, baseline over ours."""
    table: dict[str, dict[str, float | str | None]] = {}
    for row in rows:
        line: dict[str, float | str | None] = {"mean length": row["mean_length"]}
        for job in ("generation", "cached generation", "update"):
            low, high = row[job]["ratio_range"]
            line[job] = f"{row[job]['ratio']:.2f}x ({low:.2f}-{high:.2f})"
            line[f"{job} s"] = " / ".join(f"{min(row[job]['seconds'][side]['cpu']):.2f}" for side in ("ours", "baseline"))
        table[row["case"]] = line
    print_table("how many times faster ours is (ours / baseline)", table)


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    for name, value in asdict(Settings()).items():
        parser.add_argument(f"--{name}", type=type(value), default=value)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results/smiles_speed.json")
    given = vars(parser.parse_args(argv))
    out = given.pop("out")
    settings = Settings(**given)
    try:
        transformers_library()
    except ImportError as error:
        parser.exit(1, f"{error}\n")
    torch.set_num_threads(settings.threads)
    result = stamp(settings.seed, sources=SOURCES)
    result["settings"] = asdict(settings) | {"clock": settings.clock, "block": BLOCK, "scaffold": SCAFFOLD, "group": GROUP}
    result["rows"] = [measure(conditional, settings) for conditional in (False, True)]
    write_result(out, result)
    show(result["rows"])
    return result


if __name__ == "__main__":
    main()
