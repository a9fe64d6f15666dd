"""Small equivariant transformers, noisy graphs for them, and what is compared of their results."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from discrete_grpo.domains.fields import FieldBatch, FieldLogits, centred
from discrete_grpo.domains.graphs import node_mask
from discrete_grpo.models.equivariant import EquivariantConfig, EquivariantTransformer

DTYPES = {torch.float32: 1e-5, torch.float64: 1e-11}
both_precisions = pytest.mark.parametrize("dtype", list(DTYPES), ids=str)
SIZES = (6, 3, 5, 1)
FIELDS: dict[str, Any] = {
    "node_fields": {"atom": 5, "charge": 3},
    "edge_fields": {"bond": 4, "arrow": 3},
    "node_classes": {"atom": 4, "charge": 3},
    "edge_classes": {"bond": 4, "arrow": 2},
}
SHAPE: dict[str, Any] = {"layers": 3, "heads": 2, "width": 16, "edge_width": 6, "global_width": 10, "radial": 5}
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "directed": {"directed": ("arrow",)},
    "positions": {"positions": True},
    "both": {"directed": ("arrow",), "positions": True},
}
each_kind = pytest.mark.parametrize("kind", list(KINDS))
in_space = pytest.mark.parametrize("kind", ["positions", "both"])


def shake(net: nn.Module) -> None:
    """Some parameters start at zero, where the parts behind them would go untested."""
    for parameter in net.parameters():
        parameter.data += 0.1 * torch.randn(parameter.shape)


def network(kind: str = "both", dtype: torch.dtype = torch.float64, seed: int = 0, **options: Any) -> EquivariantTransformer:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = EquivariantTransformer(EquivariantConfig(**FIELDS | SHAPE | KINDS[kind] | options))
        shake(net)
        return net.to(dtype).eval()


def graphs(kind: str = "both", seed: int = 0, sizes: tuple[int, ...] = SIZES, n: int = 6) -> tuple[FieldBatch, Tensor]:
    """Noisy graphs with zero-mean positions in float64, and times."""
    g = torch.Generator().manual_seed(seed)
    mask = node_mask(torch.tensor(sizes), n)
    pair = mask[:, :, None] & mask[:, None, :] & ~torch.eye(n, dtype=torch.bool)
    nodes = {name: torch.where(mask, torch.randint(c, mask.shape, generator=g), 0) for name, c in FIELDS["node_fields"].items()}
    edges = {}
    for name, c in FIELDS["edge_fields"].items():
        full = torch.where(pair, torch.randint(c, pair.shape, generator=g), 0)
        edges[name] = full if name in KINDS[kind].get("directed", ()) else full.triu(1) + full.triu(1).transpose(1, 2)
    space = centred(1.5 * torch.randn(*mask.shape, 3, generator=g, dtype=torch.float64), mask)
    return FieldBatch(nodes, edges, space if "positions" in KINDS[kind] else None, mask), torch.rand(len(sizes), generator=g)


def run(net: EquivariantTransformer, batch: FieldBatch, time: Tensor) -> FieldLogits:
    return net(batch.nodes, batch.edges, batch.positions, time, batch.mask)


def space(batch: FieldBatch) -> Tensor:
    """The positions of a batch that has some."""
    assert batch.positions is not None
    return batch.positions


def flat(found: FieldLogits, mask: Tensor) -> dict[str, Tensor]:
    """Everything at existing places, by name; 0 elsewhere."""
    pair = (mask[:, :, None] & mask[:, None, :]).unsqueeze(-1)
    result = {name: torch.where(mask.unsqueeze(-1), value, 0.0) for name, value in found.nodes.items()}
    result |= {name: torch.where(pair, value, 0.0) for name, value in found.edges.items()}
    return result | ({} if found.positions is None else {"positions": found.positions})


def gradients(net: EquivariantTransformer, batch: FieldBatch, time: Tensor) -> list[Tensor]:
    values = flat(run(net, batch, time), batch.mask).values()
    total = torch.stack([(value.sin() * (2 + k)).sum() for k, value in enumerate(values)]).sum()
    return list(torch.autograd.grad(total, list(net.parameters()), materialize_grads=True))


def assert_same(found: dict[str, Tensor], wanted: dict[str, Tensor], tolerance: float) -> None:
    assert found.keys() == wanted.keys()
    for name in wanted:
        torch.testing.assert_close(found[name], wanted[name], rtol=0, atol=tolerance, msg=f"{name}: {{}}".format)


def orthogonal(seed: int, reflect: bool) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    q, _ = torch.linalg.qr(torch.randn(3, 3, generator=g, dtype=torch.float64))
    return q if (torch.linalg.det(q) < 0) == reflect else -q
