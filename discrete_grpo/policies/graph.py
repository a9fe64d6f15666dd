"""Graph diffusion as a policy: any kernel, any network ``(nodes, edges, time, mask) -> logits``.

A trajectory is x_1 -> ... -> x_0 on the grid of ``num_steps`` steps; step k goes from time ``grid[k]`` to
``grid[k+1]``. Its sites are the N nodes and the N(N-1)/2 unordered pairs. Drawing and scoring share
:meth:`GraphPolicy.transition`, so a stored step is scored with the log-prob with which it was drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from discrete_grpo.core.batch_share import WHOLE, BatchShare, cross_entropy
from discrete_grpo.core.categorical import Sites, safe_log
from discrete_grpo.core.checks import check_range, check_whole
from discrete_grpo.core.precision import full_precision
from discrete_grpo.core.rollout import Context, Rollout
from discrete_grpo.diffusion.graph_kl import Posteriors
from discrete_grpo.diffusion.kernels import Kernel
from discrete_grpo.diffusion.noise import Noise
from discrete_grpo.diffusion.schedules import Schedule, grid_on, time_grid
from discrete_grpo.domains.graphs import ConditionedGraphs, GraphBatch, node_mask, num_pairs, pack, pair_mask, symmetrise, upper
from discrete_grpo.domains.tokenizer import Property
from discrete_grpo.policies.bridging import accepts, bridged_rollout, check_known, known_graphs
from discrete_grpo.policies.conditions import FixedSites, fixed_states, property_table, shown_properties
from discrete_grpo.policies.delegation import network_size, one_line
from discrete_grpo.policies.graph_steps import Stepper
from discrete_grpo.policies.node_count import checked_counts, draw_sizes
from discrete_grpo.policies.noising import initial_graphs, noise_name, noised, pinned, renoised, stratified_times, wide_logits
from discrete_grpo.policies.restart import grid_point, restart_graphs, restarts_of
from discrete_grpo.policies.trajectory import (
    all_steps,
    check_alike,
    first_own_steps,
    first_rows,
    graph_rollout,
    launch_sites,
    moments,
    segment_buckets,
    size_buckets,
)

__all__ = ["FixedSites", "GraphPolicy", "size_buckets"]

MIN_PROB = 1e-30
"""Floor of p̂: a softmax that underflows to 0 would make log-probs and the KL infinite. Sums do not notice it."""


class GraphPolicy(nn.Module):
    """Categorical diffusion over graphs as a policy for GRPO.

    p_θ(x_s | x_t) = Π_sites Σ_c p̂_θ(c | x_t) q(x_s | x_t, c): a product over nodes and unordered pairs.

    With properties c and guidance weight w, log p̂ = (1 - w) log p̂_θ(· | x_t) + w log p̂_θ(· | x_t, c) + const: both branches
    of the network are run where w is not 1. Source: Ho and Salimans (2022), Eq. 6, arXiv 2207.12598 (their weight is w - 1).

    Args:
        network: ``(nodes [B,N], edges [B,N,N], time [B], mask [B,N]) -> (node logits [B,N,C_x], edge logits [B,N,N,C_e])``;
            with ``properties`` it takes them [B,K] as a fifth argument, NaN or None where not given.
        node_kernel, edge_kernel: reverse steps of nodes and of pairs; each holds its noise.
        node_counts: probability of a graph of 0, 1, 2, ... nodes; drawn once per group.
        num_steps: steps of the sampler, 1 to 10,000.
        temperature: above 0; divides the network's logits (and not what ``precondition`` adds), in drawing and in scoring.
        share_initial_noise: whether the rows of a group start from the same x_1; fixed sites are noised in each row of its own.
        shared_steps: number of first steps that the rows of a group share, from one x_1, before they separate; 0 to
            ``num_steps`` - 1. Only later steps differ within a group and are trained on. A group of one row shares nothing.
        precondition: whether logits are the network's plus log q(x_t|x_0) of each site, see
            :meth:`~discrete_grpo.diffusion.noise.Noise.evidence`. It must have the same value in training and in sampling.
        properties: properties that the network is conditioned on, each a context column of that name.
        guidance: w, weight of the conditional branch; 1 uses it alone.
        condition_dropout: p, share of training graphs of which all properties are hidden, in [0, 1]; in the others each is hidden
            with probability p.
        train_distortion: f of the training times, 1 - t = f(U) with U uniform in [0, 1]; None means uniform times.
        sample_distortion: f of the sampler's grid, 1 - t_k = f(k/T); None means equal steps. Source of both: Qin et al. (2024),
            DeFoG, section 4.1, arXiv 2410.04263.
        decode: maps finished graphs to the samples that rewards see; None gives a :class:`GraphBatch` of one graph each.
        encode: maps samples that rewards see to finished graphs; None knows a :class:`GraphBatch` of one graph each only.

    Attributes:
        record_steps: whether a GPU records a step of sampling as a CUDA graph and repeats it; not part of a saved checkpoint.

    Raises:
        ValueError: for an argument out of its range.
    """

    def __init__(
        self,
        network: nn.Module,
        node_kernel: Kernel,
        edge_kernel: Kernel,
        node_counts: Sequence[float],
        *,
        num_steps: int = 50,
        temperature: float = 1.0,
        share_initial_noise: bool = False,
        shared_steps: int = 0,
        precondition: bool = False,
        properties: Sequence[Property] = (),
        guidance: float = 1.0,
        condition_dropout: float = 0.1,
        train_distortion: Schedule | None = None,
        sample_distortion: Schedule | None = None,
        decode: Callable[[GraphBatch], Sequence[Any]] | None = None,
        encode: Callable[[Sequence[Any]], GraphBatch] | None = None,
    ) -> None:
        super().__init__()
        for name, kernel in (("node_kernel", node_kernel), ("edge_kernel", edge_kernel)):
            if precondition and not isinstance(kernel.noise, Noise):
                raise ValueError(f"precondition: True, expected False: {type(kernel).__name__} ({name}) has no schedule")
            check_range(f"{name}.num_states", kernel.noise.num_states, most=256, note=" (trajectories are bytes)")
        check_range("temperature", temperature, above=0)
        check_range("guidance", guidance, least=0)
        if guidance != 1 and not properties:
            raise ValueError(f"guidance: {guidance}, expected 1 without properties")
        check_range("condition_dropout", condition_dropout, least=0, most=1)
        self.network = network
        self.node_kernel, self.edge_kernel = node_kernel, edge_kernel
        self.node_counts = checked_counts(node_counts)
        self.num_steps, self.temperature, self.share_initial_noise = num_steps, temperature, share_initial_noise
        self.properties, self.guidance, self.condition_dropout = tuple(properties), guidance, condition_dropout
        self.train_distortion, self.sample_distortion = train_distortion, sample_distortion
        self.decode, self.encode = decode, encode
        grid = time_grid(num_steps)
        check_whole("shared_steps", shared_steps, least=0, most=num_steps - 1, note=", fewer than num_steps")
        self.shared_steps, self.precondition = shared_steps, precondition
        self.record_steps = False
        self.grid = grid if sample_distortion is None else 1 - sample_distortion.alpha_bar(grid)

    @property
    def device(self) -> torch.device:
        """Device of the network's parameters."""
        return next(self.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        """Type of the network's parameters."""
        return next(self.parameters()).dtype

    @property
    def _kernels(self) -> tuple[Kernel, Kernel]:
        return self.node_kernel, self.edge_kernel

    @property
    def max_nodes(self) -> int:
        """The largest graph this policy has a size probability for."""
        return len(self.node_counts) - 1

    def init_args(self) -> dict[str, Any]:
        """Arguments from which a checkpoint builds this policy again (without ``decode`` and ``encode``, which are set again)."""
        names = ("network", "node_kernel", "edge_kernel", "node_counts", "num_steps", "temperature", "share_initial_noise")
        conditional = ("properties", "guidance", "condition_dropout") if self.properties else ()
        distorted = [name for name in ("train_distortion", "sample_distortion") if getattr(self, name) is not None]
        more = [name for name in ("shared_steps", "precondition") if getattr(self, name)]
        return {name: getattr(self, name) for name in (*names, *conditional, *distorted, *more)}

    def __repr__(self) -> str:
        kernel = f"{type(self.edge_kernel).__name__} of {noise_name(self.edge_kernel.noise)}"
        return one_line(self, network_size(self.network), f"{self.num_steps} steps", kernel)

    # -- the one function that drawing and scoring share

    def transition(
        self, state: GraphBatch, step: Int[Tensor, " batch"], properties: Float[Tensor, "batch property"] | None = None
    ) -> tuple[Tensor, Tensor]:
        """p_θ(x_s | x_t) of step ``step[b]`` from ``state``: node tables [B, N, K_x] and pair tables [B, P, K_e], float32."""
        grid = grid_on(self.grid, step.device)
        t, s = grid[step], grid[step + 1]
        p_nodes, p_pairs = self.clean_probs(state, t, properties)
        with full_precision(step.device):
            nodes = self.node_kernel.transition(p_nodes, state.nodes, t, s)
            return nodes, self.edge_kernel.transition(p_pairs, upper(state.edges), t, s)

    def clean_probs(
        self, state: GraphBatch, time: Float[Tensor, " batch"], properties: Float[Tensor, "batch property"] | None = None
    ) -> tuple[Tensor, Tensor]:
        """p̂_θ(x_0 | x_t, c) over clean classes, nodes [B, N, C_x] and pairs [B, P, C_e]; at least float32."""
        nodes, edges = self._logits(state, time.to(self.dtype), properties)
        with full_precision(time.device):
            of_nodes, of_pairs = (z / self.temperature for z in (nodes, upper(edges)))
            p_nodes = self._given_state(self.node_kernel, of_nodes, state.nodes, time).softmax(-1)
            p_pairs = self._given_state(self.edge_kernel, of_pairs, upper(state.edges), time).softmax(-1)
            return p_nodes.clamp_min(MIN_PROB), p_pairs.clamp_min(MIN_PROB)

    def _given_state(self, kernel: Kernel, logits: Tensor, state: Tensor, time: Tensor) -> Tensor:
        """The network's logits; with ``precondition`` plus the evidence of the site's own noisy class."""
        return logits + cast(Noise, kernel.noise).evidence(state, time).to(logits.dtype) if self.precondition else logits

    def _logits(self, state: GraphBatch, time: Tensor, properties: Tensor | None) -> tuple[Tensor, Tensor]:
        """The network's logits under guidance, at least float32; rows without properties get the unconditional branch from both."""
        if properties is None or not self.properties:
            return wide_logits(self.network(state.nodes, state.edges, time, state.mask))
        if self.guidance == 1:
            return wide_logits(self.network(state.nodes, state.edges, time, state.mask, properties))
        both = [torch.cat([x, x]) for x in (state.nodes, state.edges, time, state.mask)]
        nodes, edges = wide_logits(self.network(*both, torch.cat([properties, torch.full_like(properties, torch.nan)])))
        conditional, free = zip(nodes.chunk(2), edges.chunk(2), strict=True)
        with full_precision(nodes.device):
            x, e = (torch.lerp(u, c, self.guidance) for u, c in zip(free, conditional, strict=True))
        return x, e

    # -- Policy protocol

    @torch.no_grad()
    def sample(self, contexts: Sequence[Context], *, generator: torch.Generator | None = None) -> Rollout:
        """Draw one trajectory per context.

        Columns read, all optional: ``num_nodes`` (drawn from the prior once per group otherwise), ``fixed`` (:class:`FixedSites`),
        ``restart`` (:class:`~discrete_grpo.policies.restart.Restart`, one per group) and those named in ``properties``.

        With ``shared_steps`` = k a group of several rows takes the steps before k once. Those have no units and log-prob 0: the
        rest adds up to log p(z_{k+1}, ..., z_T | z_k), z_k the state at grid point k, and the rows are independent given z_k.

        Raises:
            ValueError: if a context asks for a size or a class this policy does not know, or with ``shared_steps`` for others
                than the rest of its group.
        """
        if not contexts:
            raise ValueError("contexts: none given, expected at least one")
        if self.shared_steps:
            check_alike(contexts, ("fixed", *(p.name for p in self.properties)))
        groups = torch.tensor([c.group for c in contexts])
        sizes = self._draw_sizes(contexts, generator)
        n_max = int(sizes.max())
        shape = (len(contexts), self.num_steps + 1)
        nodes = torch.zeros(*shape, n_max, dtype=torch.uint8, device=self.device)
        pairs = torch.zeros(*shape, num_pairs(n_max), dtype=torch.uint8, device=self.device)
        logp = torch.zeros(*shape[:1], self.num_steps, device=self.device, dtype=torch.promote_types(self.dtype, torch.float32))
        fixed = fixed_states(contexts, sizes, n_max, self.node_kernel.noise.num_clean, self.edge_kernel.noise.num_clean)
        properties = property_table(contexts, self.properties, self.dtype)
        again = restart_graphs(contexts, n_max, self.node_kernel.noise.num_clean, self.edge_kernel.noise.num_clean, self.num_steps)
        start = torch.zeros_like(sizes) if again is None else again.step
        for rows in segment_buckets(sizes, start, launch_sites(self.device)):
            n, first = int(sizes[rows].max()), int(start[rows[0]])
            part = None if fixed is None else fixed.index(rows).crop(n).to(self.device)
            given = None if properties is None else properties[rows].to(self.device)
            if again is not None and first > 0:
                state = renoised(self._kernels, again.graphs.index(rows).crop(n).to(self.device), self.grid, first, generator)
            else:  # q(x_1 | x_0) is the prior too
                state = initial_graphs(self._kernels, node_mask(sizes[rows].to(self.device), n), generator)
            drawn = self._draw(state, first, first_rows(groups[rows]).to(self.device), part, given, generator)
            at = rows.to(self.device)
            nodes[at, :, :n], pairs[at, :, : num_pairs(n)], logp[at] = drawn
        states, own = {"nodes": nodes, "pairs": pairs}, first_own_steps(groups, start, self.shared_steps)
        if again is not None or bool((own > start).any()):
            states["start"] = own.to(self.device)
            logp.masked_fill_(torch.arange(self.num_steps, device=self.device) < states["start"][:, None], 0.0)
        if properties is not None:
            states["properties"] = properties.to(self.device)
        if fixed is not None:
            states |= {"free_nodes": (fixed.nodes < 0).to(self.device), "free_pairs": (upper(fixed.edges) < 0).to(self.device)}
        size, group = sizes.to(self.device), groups.to(self.device)
        return graph_rollout(contexts, states, logp, group, size, max_nodes=self.max_nodes, decode=self.decode)

    def sites(self, rollout: Rollout, steps: Int[Tensor, "batch step"] | None = None) -> Sequence[Sites]:
        """Node and pair categoricals of stored steps, [B, S', N, K_x] and [B, S', P, K_e]; all steps if None."""
        steps = all_steps(rollout) if steps is None else steps
        now = moments(rollout, steps)
        tables = self.transition(now.state, steps.flatten(), now.properties)
        row = torch.arange(len(rollout), device=steps.device)[:, None]
        drawn = [rollout.states[name][row, steps + 1] for name in ("nodes", "pairs")]
        return [
            Sites(safe_log(q.unflatten(0, steps.shape)), action[..., : mask.shape[-1]], mask)
            for q, action, mask in zip(tables, drawn, now.chosen, strict=True)
        ]

    def posteriors(self, rollout: Rollout, steps: Int[Tensor, "batch step"] | None = None) -> Posteriors:
        """p_θ(x_s | x_t) of stored steps as dense probabilities, differentiable: the form that ``posterior_kl`` takes.

        A row is a trajectory at a step, row b·S' + k for ``steps[b, k]``; all steps if None. Sites that a context fixes, and steps
        that a row did not draw itself, have tables here too, whereas :meth:`sites` masks them out.
        """
        steps = all_steps(rollout) if steps is None else steps
        now = moments(rollout, steps)
        nodes, pairs = self.transition(now.state, steps.flatten(), now.properties)
        return Posteriors(nodes, symmetrise(pairs, now.state.num_nodes), now.state.mask)

    def check_condition(self, columns: Mapping[str, Any]) -> None:
        """Raise the error that :meth:`sample` would raise for a context with these columns."""
        context = Context(0, columns)
        property_table([context], self.properties, self.dtype)
        sizes = self._draw_sizes([context], torch.Generator().manual_seed(0))
        classes = self.node_kernel.noise.num_clean, self.edge_kernel.noise.num_clean
        fixed_states([context], sizes, int(sizes[0]), *classes)
        restart_graphs([context], int(sizes[0]), *classes, self.num_steps)

    def restarts(self, rollout: Rollout, rows: Int[Tensor, " row"], time: float) -> list[dict[str, Any]]:
        """The column ``restart`` of each of these samples: :meth:`sample` re-noises it to the grid point nearest to ``time``."""
        return restarts_of(rollout, rows, grid_point(self.grid, time))

    # -- graphs that it did not draw

    def graphs_of(self, samples: Sequence[Any]) -> GraphBatch:
        """The finished graphs of samples; raises ValueError for one that this policy cannot draw."""
        return known_graphs(samples, self.encode, self._kernels, self.node_counts).to(self.device)

    def can_draw(self, sample: Any) -> bool:
        """Whether a sample is a graph of the policy's classes whose node count has mass in ``node_counts``."""
        return accepts(self.graphs_of, sample)

    def rollout_of(self, samples: Sequence[Any], *, generator: torch.Generator | None = None) -> Rollout:
        """A trajectory of each graph from the noising process given its end, see :mod:`~discrete_grpo.policies.bridging`.

        No condition is given. Nodes are numbered as the samples list them. Raises ValueError as :meth:`graphs_of` does.
        """
        graphs = self.graphs_of(samples)
        return bridged_rollout(samples, graphs, self._kernels, self.grid, self.max_nodes, self.dtype, generator)

    # -- likelihood training

    def check_batch(self, graphs: GraphBatch | ConditionedGraphs) -> None:
        """Check a training batch, before it is moved to a GPU, where that would make the host wait.

        Raises:
            ValueError: for a graph larger than this policy knows, or of an unknown class.
        """
        check_known(self._graphs(graphs), self._kernels, self.max_nodes)

    @staticmethod
    def _graphs(given: GraphBatch | ConditionedGraphs) -> GraphBatch:
        return given.graphs if isinstance(given, ConditionedGraphs) else given

    def likelihood_loss(
        self,
        graphs: GraphBatch | ConditionedGraphs,
        *,
        edge_weight: float = 5.0,
        generator: torch.Generator | None = None,
        share: BatchShare = WHOLE,
    ) -> dict[str, Tensor]:
        """Cross-entropy of the clean graph, CE_X + λ CE_E, at one stratified time per graph.

        Means run over existing nodes and unordered pairs. Source: Vignac et al. (2022), Eq. 2, arXiv 2209.14734 (λ = 5).

        Raises:
            ValueError: as :meth:`check_batch`, for a batch on the CPU.
        """
        if self._graphs(graphs).nodes.device.type == "cpu":
            self.check_batch(graphs)
        graphs, properties = shown_properties(graphs, self.condition_dropout, generator)
        t = stratified_times(len(graphs), graphs.nodes.device, self.train_distortion, generator)
        noisy, own = noised(self._kernels, graphs, t, generator), share.own
        graphs, noisy, t, properties = graphs.index(own), noisy.index(own), t[own], tuple(p[own] for p in properties)
        node_logits, edge_logits = wide_logits(self.network(noisy.nodes, noisy.edges, t.to(self.dtype), graphs.mask, *properties))
        with full_precision(graphs.nodes.device):
            of_nodes = self._given_state(self.node_kernel, node_logits, noisy.nodes, t)
            of_pairs = self._given_state(self.edge_kernel, upper(edge_logits), upper(noisy.edges), t)
            on_nodes = cross_entropy(of_nodes, graphs.nodes, graphs.mask)
            loss_nodes, loss_edges = share.means(on_nodes, cross_entropy(of_pairs, upper(graphs.edges), pair_mask(graphs.mask)))
        return {"loss": loss_nodes + edge_weight * loss_edges, "loss_nodes": loss_nodes.detach(), "loss_edges": loss_edges.detach()}

    # -- drawing

    def draw_sizes(self, count: int, *, generator: torch.Generator | None = None) -> list[int]:
        """Draw the node counts of ``count`` groups without a condition; see :class:`~discrete_grpo.core.rollout.SizeDrawer`."""
        sizes: list[int] = self._draw_sizes([Context(group, {}) for group in range(count)], generator).tolist()
        return sizes

    def _draw_sizes(self, contexts: Sequence[Context], generator: torch.Generator | None) -> Int[Tensor, " batch"]:
        device = self.device if generator is None else generator.device
        return draw_sizes(contexts, torch.tensor(self.node_counts, device=device), generator)

    def _draw(
        self,
        state: GraphBatch,
        first: int,
        leader: Int[Tensor, " row"],
        fixed: GraphBatch | None,
        properties: Tensor | None,
        generator: torch.Generator | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Trajectories of one bucket: packed node states [b, S+1, n], pair states [b, S+1, p], step log-probs [b, S].

        States before step ``first`` repeat ``state``, from which that step starts; ``leader`` is the first row of each row's group.
        """
        if self.share_initial_noise:
            state = state.index(leader)
        state = pinned(self._kernels, state, fixed, self.grid, first, generator)
        wide = torch.promote_types(self.dtype, torch.float32)
        record = self.record_steps and state.nodes.device.type == "cuda"
        stepper = Stepper(self.transition, self._kernels, self.grid, wide, generator, fixed, properties, record)
        begin, path = pack(state), list[tuple[Tensor, Tensor, Tensor]]()
        if first < self.shared_steps:  # one row per group, then as many as the group has
            begin = pack(state.index(leader))
            heads, place = leader.unique(return_inverse=True)
            for drawn in stepper.index(heads).walk(state.index(heads), range(first, self.shared_steps)):
                path.append((drawn.nodes[place], drawn.pairs[place], drawn.logp[place]))
                state = drawn.state.index(place)
        walk = stepper.walk(state, range(first + len(path), self.num_steps))
        nodes, pairs, logps = zip(*path, *((drawn.nodes, drawn.pairs, drawn.logp) for drawn in walk), strict=True)
        logp = [torch.zeros_like(logps[0])] * first + list(logps)
        states = [torch.stack([start] * (first + 1) + list(found), 1) for start, found in zip(begin, (nodes, pairs), strict=True)]
        return states[0], states[1], torch.stack(logp, 1)
