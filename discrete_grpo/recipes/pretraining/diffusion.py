"""Builds graph diffusion and flow policies from named options, for the recipes of molecules and of plain graphs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from discrete_grpo.core.checks import MOST_STEPS, check_fields, check_sizes
from discrete_grpo.core.option_names import known_options
from discrete_grpo.core.seeding import seeded
from discrete_grpo.diffusion import choices
from discrete_grpo.diffusion.schedules import Schedule
from discrete_grpo.domains.graphs import GraphBatch
from discrete_grpo.domains.tokenizer import Property
from discrete_grpo.models.graph_transformer import GraphTransformer, GraphTransformerConfig, NetworkSizes
from discrete_grpo.policies.graph import GraphPolicy

__all__ = ["Denoiser", "DiffusionOptions", "check_denoiser", "diffusion_policy"]


@known_options()
@dataclass(frozen=True, kw_only=True)
class DiffusionOptions:
    """Noise and sampler of a graph diffusion or flow policy.

    Attributes:
        noise: distribution that graphs are noised to: uniform, marginal (the class frequencies of the training data) or
            absorbing (masked diffusion).
        kernel: reverse step of the sampler: d3pm, flow or flow_euler. The network is the same for all of them.
        schedule: noise schedule: cosine, or linear (the path of flow matching).
        train_distortion: distortion of the training times: identity, cos, revcos, polyinc or polydec.
        sample_distortion: distortion of the sampler's time grid, with the same choices.
        eta: stochasticity of kernel flow_euler.
        omega: target guidance of kernel flow_euler.
        num_steps: number of steps of the sampler, stored with the policy.
        precondition: whether log q(x_t given x_0) of each site is added to the network's logits, so that the network only
            learns what the other sites imply.

    Raises:
        ValueError: for an unknown name, a value out of its range, or ``eta`` or ``omega`` with another kernel than flow_euler.
    """

    noise: choices.NoiseName = "marginal"
    kernel: choices.KernelName = "d3pm"
    schedule: choices.ScheduleName = "cosine"
    train_distortion: choices.Distortion = "identity"
    sample_distortion: choices.Distortion = "identity"
    eta: float = 0.0
    omega: float = 0.0
    num_steps: int = 50
    precondition: bool = False

    def __post_init__(self) -> None:
        check_fields(self, "num_steps", least=1, most=MOST_STEPS)
        for name in ("train_distortion", "sample_distortion"):
            choices.make_distortion(getattr(self, name), name)
        self.make_kernel((0.5, 0.5))

    def make_kernel(self, shares: Sequence[float], schedule: Schedule | None = None) -> choices.GraphKernel:
        """The kernel of classes with frequencies ``shares``; a ``schedule`` takes the place of the named one."""
        noise = choices.make_noise(self.noise, shares, schedule or choices.make_schedule(self.schedule))
        return choices.make_kernel(self.kernel, noise, eta=self.eta, omega=self.omega)


def diffusion_policy(
    shares: tuple[Sequence[float], Sequence[float]],
    node_counts: Sequence[float],
    network: NetworkSizes | nn.Module | None = None,
    options: DiffusionOptions | None = None,
    *,
    schedule: Schedule | None = None,
    properties: Sequence[Property] = (),
    condition_dropout: float = 0.1,
    decode: Callable[[GraphBatch], Sequence[Any]] | None = None,
    encode: Callable[[Sequence[Any]], GraphBatch] | None = None,
    seed: int = 42,
) -> GraphPolicy:
    """Build an untrained graph diffusion or flow policy.

    Args:
        shares: frequencies of the node classes and of the edge classes in the training data.
        node_counts: probability of a graph of 0, 1, 2, ... nodes.
        network: sizes of a graph transformer, or a custom network, see :class:`Denoiser`; None means default sizes.
        options: noise and sampler; None means the defaults.
        schedule: a custom noise schedule, in place of ``options.schedule``.
        properties: properties that the policy is conditioned on.
        condition_dropout: share of training graphs of which all properties are hidden; in the others each is hidden with the same
            probability.
        decode: turns finished graphs into the samples that rewards see.
        encode: turns samples that rewards see into finished graphs.
        seed: random seed of the initial weights of a graph transformer; the global random state is not changed.

    Raises:
        ValueError: if ``network`` is neither sizes nor a module, or a custom network does not fit.
    """
    options = options or DiffusionOptions()
    nodes, edges = (options.make_kernel(share, schedule) for share in shares)
    _check_no_mask_stays(nodes)
    own = isinstance(network, nn.Module)
    taken = getattr(getattr(network, "config", None), "num_properties", None)
    if own and taken is not None and taken != len(properties):
        raise ValueError(f"network: of {taken} properties, expected {len(properties)} as the policy has")
    policy = GraphPolicy(
        network if isinstance(network, nn.Module) else _graph_transformer(nodes, edges, network, len(properties), seed),
        nodes,
        edges,
        node_counts,
        num_steps=options.num_steps,
        precondition=options.precondition,
        properties=properties,
        condition_dropout=condition_dropout,
        train_distortion=choices.make_distortion(options.train_distortion),
        sample_distortion=choices.make_distortion(options.sample_distortion),
        decode=decode,
        encode=encode,
    )
    if own:
        check_denoiser(policy)
    return policy


def _check_no_mask_stays(kernel: choices.GraphKernel) -> None:
    """Raise ``ValueError`` if masked states would stay in finished graphs."""
    noise = kernel.noise
    kept = float(noise.schedule.alpha_bar(torch.zeros(1, dtype=torch.float64)))
    if noise.num_clean < noise.num_states and kept != 1:
        name = type(noise.schedule).__name__
        raise ValueError(f"schedule: {name} has ᾱ(0) = {kept:.6g}, expected 1 with noise absorbing, or masks stay in samples")


def _graph_transformer(
    nodes: choices.GraphKernel, edges: choices.GraphKernel, sizes: NetworkSizes | None, num_properties: int, seed: int
) -> GraphTransformer:
    """A graph transformer for the classes of two kernels, with initial weights of ``seed``."""
    if not (sizes is None or isinstance(sizes, NetworkSizes)):
        raise ValueError(f"network: {sizes!r}, expected a torch.nn.Module, NetworkSizes or None")
    check_sizes("network", sizes or NetworkSizes(), NetworkSizes)
    x, e = nodes.noise, edges.noise
    classes = (x.num_states, e.num_states, x.num_clean, e.num_clean)
    with seeded(seed):
        return GraphTransformer(GraphTransformerConfig(*classes, num_properties, **vars(sizes or NetworkSizes())))


class Denoiser(Protocol):
    """Interface of a denoising network; any ``nn.Module`` with this signature can be the network of a policy.

    To be saved and loaded it also needs a method ``init_args()`` that returns the arguments it was built with, and its package
    must be named when loading: ``load_policy(folder, trusted=("mypackage",))``.
    """

    def __call__(
        self,
        nodes: Int[Tensor, "batch node"],
        edges: Int[Tensor, "batch node node"],
        time: Float[Tensor, " batch"],
        mask: Bool[Tensor, "batch node"],
        properties: Float[Tensor, "batch property"] | None = None,
    ) -> tuple[Float[Tensor, "batch node node_class"], Float[Tensor, "batch node node edge_class"]]:
        """Return logits over the clean classes of nodes and edges; those of padding and the lower triangle are ignored.

        Logits of existing sites must not depend on padding, since a batch holds graphs of several sizes.

        Args:
            nodes: noisy node classes, 0 at padding; with noise ``absorbing`` the last class means "masked".
            edges: noisy edge classes, symmetric, 0 on the diagonal and at padding; class 0 means "no edge", and with noise
                ``absorbing`` the last class means "masked".
            time: in [0, 1]; 0 is data and 1 is noise.
            mask: which nodes exist.
            properties: given only for a policy with properties, and not in every call; NaN where a property is not given.
        """
        ...


def check_denoiser(policy: GraphPolicy) -> None:
    """Call the network of a policy on two small noisy graphs as :class:`Denoiser` specifies, and check the logits.

    Raises:
        ValueError: in one line, if the network has no parameters, cannot be called this way, or returns other shapes.
    """
    network, n = policy.network, min(3, policy.max_nodes)
    if next(network.parameters(), None) is None:
        raise ValueError(f"network: {type(network).__name__} has no parameters, expected a module that can be trained")
    mask = torch.arange(n) < torch.tensor([[n], [max(1, n - 1)]])
    last = torch.tensor([1, 0])  # the first graph has the last class everywhere, the second class 0
    nodes = last[:, None].expand(2, n) * (policy.node_kernel.noise.num_states - 1)
    edges = last[:, None, None] * (1 - torch.eye(n, dtype=torch.long)) * (policy.edge_kernel.noise.num_states - 1)
    inputs = [nodes, edges, torch.tensor([0.25, 0.75], dtype=policy.dtype), mask]
    properties = torch.zeros(2, len(policy.properties), dtype=policy.dtype)
    properties[0] = torch.nan
    training = network.training
    network.eval()
    try:
        for arguments in (inputs, [*inputs, properties])[: 2 if policy.properties else 1]:
            _check_logits(policy, _called(network, [x.to(policy.device) for x in arguments], policy), n)
    finally:
        network.train(training)


def _called(network: nn.Module, arguments: Sequence[Tensor], policy: GraphPolicy) -> Any:
    """Call the network without gradients; an error of the network becomes one line."""
    try:
        with torch.no_grad(), seeded(0, arguments[0].device):
            return network(*arguments)
    except Exception as error:  # a network of the user's may raise anything
        said = " ".join(str(error).split()) or type(error).__name__
        names = ", ".join(("nodes", "edges", "time", "mask", "properties")[: len(arguments)])
        nodes, edges = policy.node_kernel.noise.num_states - 1, policy.edge_kernel.noise.num_states - 1
        told = f"network: {type(network).__name__} fails when called as network({names})"
        raise ValueError(f"{told} with classes 0 to {nodes} of nodes and 0 to {edges} of edges: {said}") from error


def _check_logits(policy: GraphPolicy, found: Any, n: int) -> None:
    """Raise ValueError unless ``found`` is node and edge logits of two graphs of at most ``n`` nodes."""
    name = type(policy.network).__name__
    if not (isinstance(found, tuple | list) and len(found) == 2 and all(isinstance(x, Tensor) for x in found)):
        told = f"{len(found)} values" if isinstance(found, tuple | list) else f"one {type(found).__name__}"
        raise ValueError(f"network: {name} returns {told}, expected two tensors: node logits and edge logits")
    nodes, edges = (2, n, policy.node_kernel.noise.num_clean), (2, n, n, policy.edge_kernel.noise.num_clean)
    wanted = (("node", nodes, "[graph, node, class]"), ("edge", edges, "[graph, node, node, class]"))
    for (kind, shape, axes), logits in zip(wanted, found, strict=True):
        if tuple(logits.shape) != shape:
            raise ValueError(f"network: {name} returns {kind} logits of shape {tuple(logits.shape)}, expected {shape}, {axes}")
        if not logits.is_floating_point():
            raise ValueError(f"network: {name} returns {kind} logits of type {logits.dtype}, expected a floating-point type")
