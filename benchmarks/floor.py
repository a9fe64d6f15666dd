"""Distance of the graph transformer from the matrix products that it must compute, forward and in an update.

The floor of a job is its FLOPs, counted by torch, over the rate of one product of 1,024 x 1,024 matrices in float32 on the same
thread. Narrow products do not reach that rate, so that 1 is out of reach; the distance says how much the rest costs.

The network without :mod:`discrete_grpo.models.pairs` stands beside it: the same layers written with an incidence matrix, stored
gathers and separate norms (:func:`plainly`), in turns in the same process, with equal weights.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.common import ROOT, interleaved, paired_ratio, peak_allocated, stamp, write_result
from discrete_grpo.domains.graphs import pair_index, pair_mask, symmetrise
from discrete_grpo.models import graph_transformer, pairs
from discrete_grpo.models.graph_transformer import BASE, SMALL, GraphTransformer, GraphTransformerConfig
from discrete_grpo.models.pairs import PairLayout

CASES = {"qm9, N=9": (9, 64), "zinc, N=38": (38, 8), "planar, N=64": (64, 4), "N=200": (200, 1)}
WIDTHS: dict[str, dict[str, Any]] = {"small": SMALL, "base": {**BASE, "layers": 3}}
SOURCES = (
    "models/graph_transformer.py",
    "models/pairs.py",
    "models/connectivity.py",
    "models/random_walks.py",
    "benchmarks/floor.py",
)


def batch(num_nodes: int, graphs: int) -> tuple[Tensor, ...]:
    """Random full-size graphs: nodes, edges, times, mask."""
    generator = torch.Generator().manual_seed(0)
    nodes = torch.randint(9, (graphs, num_nodes), generator=generator)
    edges = torch.randint(4, (graphs, num_nodes, num_nodes), generator=generator).triu(1)
    return nodes, edges + edges.mT, torch.rand(graphs, generator=generator), torch.ones(graphs, num_nodes, dtype=torch.bool)


def update(network: nn.Module, inputs: tuple[Tensor, ...]) -> None:
    """A forward and a backward pass."""
    network.zero_grad(set_to_none=True)
    nodes, edges = network(*inputs)
    (nodes.square().mean() + edges.square().mean()).backward()


def flops(job: Any) -> int:
    """FLOPs of the matrix products of a job."""
    with FlopCounterMode(display=False) as counter:
        job()
    return int(counter.get_total_flops())


# -- the same layers without fused passes


def _square(pairs: Tensor, layout: PairLayout, num_nodes: int) -> Tensor:
    return symmetrise(pairs, num_nodes)


def _incident_sum(pairs: Tensor, layout: PairLayout, num_nodes: int) -> Tensor:
    left, right = pair_index(num_nodes)
    number = torch.arange(num_nodes)[:, None]
    exists = pair_mask(torch.ones(len(pairs), num_nodes, dtype=torch.bool)).unsqueeze(-1)
    return ((number == left) | (number == right)).to(pairs.dtype) @ (pairs * exists)


def _film_norm(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    return torch.addcmul(shift, nn.functional.layer_norm(x, x.shape[-1:]), 1 + scale)


def _pair_update(
    state: Tensor, normed: Tensor, logits: Tensor, nodes: Tensor, into: Tensor, out: Tensor, bias: Tensor, layout: PairLayout
) -> Tensor:
    own = nn.functional.linear(torch.cat([normed, logits], -1), into[:, :-1], into[:, -1])
    product = torch.addcmul(own, nodes.index_select(1, layout.left), nodes.index_select(1, layout.right))
    return state + nn.functional.linear(nn.functional.gelu(product), out, bias)


def _softmax(logits: Tensor) -> Tensor:
    return logits.softmax(-1)


PLAIN = {"square": _square, "incident_sum": _incident_sum, "pair_update": _pair_update, "_softmax": _softmax}


@contextmanager
def plainly() -> Iterator[None]:
    """Replace the fused passes of the network by plain operations."""
    with ExitStack() as stack:
        for name, replacement in PLAIN.items():
            stack.enter_context(patch.object(graph_transformer, name, replacement))
        stack.enter_context(patch.object(pairs, "film_norm", _film_norm))
        yield


# -- the table


def row(sizes: dict[str, Any], num_nodes: int, graphs: int, repeats: int) -> dict[str, Any]:
    """Distances, ratios to the plain form and peak memory of one network and one size of graphs."""
    torch.manual_seed(0)
    config = GraphTransformerConfig(node_states=9, edge_states=4, node_classes=9, edge_classes=4, **sizes)
    network, inputs = GraphTransformer(config), batch(num_nodes, graphs)
    square = torch.randn(1024, 1024)

    def forward() -> None:
        with torch.no_grad():
            network(*inputs)

    def plain_forward() -> None:
        with plainly():
            forward()

    def plain_update() -> None:
        with plainly():
            update(network, inputs)

    jobs = [lambda: square @ square, forward, plain_forward, lambda: update(network, inputs), plain_update]
    with plainly():  # the FLOPs of the plain form are the floor of both
        needed = {"forward": flops(forward), "update": flops(lambda: update(network, inputs))}
    product, *times = [timing.cpu for timing in interleaved(jobs, repeats)]
    rate = 2 * 1024**3 / min(product)
    found: dict[str, Any] = {"gflops": {k: v / 1e9 for k, v in needed.items()}, "rate_gflops": rate / 1e9}
    for name, ours, plain in (("forward", times[0], times[1]), ("update", times[2], times[3])):
        floor = needed[name] / rate
        found[name] = {
            "seconds": statistics.median(ours),
            "distance": min(ours) / floor,
            "plain_distance": min(plain) / floor,
            "ratio": paired_ratio(ours, plain),
        }
    found["peak_mib"] = {
        "ours": peak_allocated(lambda: update(network, inputs)) / 2**20,
        "plain": peak_allocated(plain_update) / 2**20,
    }
    return found


def main() -> None:
    """Measure every row and write the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=15, help="turns of every job")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results/floor.json", help="file to write")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = {
        f"{width}, {name}": row(sizes, *case, options.repeats) for width, sizes in WIDTHS.items() for name, case in CASES.items()
    }
    for name, found in rows.items():
        print(
            f"{name:20}",
            *(f"{k} {found[k]['distance']:.2f} (plain {found[k]['plain_distance']:.2f})" for k in ("forward", "update")),
            f"peak {found['peak_mib']['ours']:.0f} / {found['peak_mib']['plain']:.0f} MiB",
        )
    write_result(options.out, {**stamp(0, sources=SOURCES), "clock": "cpu", "repeats": options.repeats, "rows": rows})


if __name__ == "__main__":
    main()
