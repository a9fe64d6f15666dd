"""Autoregressive policies of graphs, which write them as token sequences, and their pretraining.

Samples are graph6 lines, with the names of the classes of nodes and edges where the data has classes, as those of
:mod:`discrete_grpo.recipes.pretraining.graphs`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from discrete_grpo.core.checks import check_choices, check_fields, check_range, check_sizes, check_text, check_whole
from discrete_grpo.core.option_names import known_options
from discrete_grpo.core.seeding import seeded
from discrete_grpo.datasets.graph_splits import load_splits
from discrete_grpo.datasets.graph_tokens import GraphTokens, graph_tokens
from discrete_grpo.datasets.listed_graphs import check_nodes
from discrete_grpo.datasets.own_graphs import is_own, labelled_splits, own_graphs
from discrete_grpo.datasets.synthetic_graphs import GraphSplits
from discrete_grpo.datasets.text_files import MAX_BYTES
from discrete_grpo.domains.graph6 import MAX_NODES
from discrete_grpo.domains.graph_sequence_grammar import GraphSequenceGrammar
from discrete_grpo.domains.graph_sequences import PATTERN, GraphSequences, most_tokens, vocabulary
from discrete_grpo.domains.graph_validity import Shape
from discrete_grpo.domains.named_graphs import Labels
from discrete_grpo.domains.tokenizer import Tokenizer
from discrete_grpo.metrics.graphs import GraphReference, evaluate
from discrete_grpo.models.gpt import GPT, GPTConfig
from discrete_grpo.policies.decoded import DecodedPolicy
from discrete_grpo.policies.tokens import TokenPolicy
from discrete_grpo.policies.truncation import Truncation
from discrete_grpo.recipes.kinds.graph_sources import shape_of
from discrete_grpo.recipes.pretraining.fitting import fit
from discrete_grpo.recipes.pretraining.graph_recipes import (
    attributes_of,
    check_no_attributes,
    fresh_graph_metrics,
    graph_metadata,
    reading_options,
)
from discrete_grpo.recipes.pretraining.held_out import with_held_out
from discrete_grpo.training.config import PretrainConfig

__all__ = ["PretrainGraphSequencesRecipe", "graph_sequence_policy", "run_pretrain_graph_sequences"]

TEST_ORDERS = 8
"""Largest number of random orders in which a held-out graph is written."""


@known_options()
@dataclass(frozen=True)
class PretrainGraphSequencesRecipe:
    """Likelihood training of an autoregressive policy on graphs, plain or with classes of nodes and edges.

    Attributes:
        data: a named set (planar-16, tree-16, planar-64, tree-64, sbm, community-20), generated on the spot, an npz file of
            splits, or a file or folder of your own undirected graphs (.graphml, .gml, .json, .jsonl, .edgelist, .g6, .pt).
        output_dir: run folder to make.
        orders: number of random orders in which each graph is written; an epoch visits all of them.
        candidates: number of orders drawn for each of these, of which the one with the fewest distant edges is taken.
        layers: depth of the transformer.
        heads: attention heads of the transformer.
        width: width of its hidden states.
        dropout: dropout probability in the transformer while pretraining.
        max_length: largest number of tokens of a graph; None means that of the data.
        temperature: temperature of sampling, kept with the policy; it is 1 in training.
        pretrain: settings of the training loop.
        evaluation_samples: graphs sampled at every checkpoint to log validity; 0 means none. The loss of held-out graphs,
            ``eval/test_loss``, is logged there too, in the same orders each time.
        data_licence: text kept with the checkpoint.
        shape: the property that makes a graph valid: planar, tree, sbm or connected; None means that of a named set, that of
            the published ``planar.npz``, ``tree.npz`` and ``sbm.npz``, and else connected.
        max_nodes: largest number of nodes of a graph of a file.
        max_bytes: largest size of a file, unpacked.
        node_attribute: of own graphs: attribute of nodes that holds their class; None takes the only one, and ``x`` of PyG data.
        edge_attribute: of own graphs: attribute of edges that holds their class; None takes the only one, and ``edge_attr`` of
            PyG data.
        test_share: share of own graphs without splits that is not trained on and that samples are compared with.
    """

    data: str = "tree-64"
    output_dir: str = "runs/pretrain-graph-sequences"
    orders: int = 64
    candidates: int = 8
    layers: int = 6
    heads: int = 4
    width: int = 96
    dropout: float = 0.0
    max_length: int | None = None
    temperature: float = 1.0
    pretrain: PretrainConfig = field(default_factory=PretrainConfig)
    evaluation_samples: int = 80
    data_licence: str = "made by discrete-grpo"
    shape: Shape | None = None
    max_nodes: int = MAX_NODES
    max_bytes: int = MAX_BYTES
    node_attribute: str | None = None
    edge_attribute: str | None = None
    test_share: float = 0.1

    def __post_init__(self) -> None:
        check_text("data", self.data, "the name of a set, or of a file or folder of graphs")
        check_fields(self, "orders candidates layers heads width max_length max_nodes max_bytes", least=1)
        check_fields(self, "test_share", above=0, below=1)
        check_fields(self, "evaluation_samples", least=0)
        check_choices(self)


def graph_sequence_policy(
    max_nodes: int,
    max_length: int,
    labels: Labels | None = None,
    *,
    layers: int = 6,
    heads: int = 4,
    width: int = 96,
    dropout: float = 0.0,
    temperature: float = 1.0,
    seed: int = 42,
) -> DecodedPolicy:
    """Build an untrained autoregressive policy, which draws lines of graphs of at most ``max_nodes`` nodes.

    A grammar allows only tokens that continue the text of a graph, so a sample is None only if the class of the last node or edge
    is cut off at ``max_length``. The network reads the numbers of nodes, the lengths of the queues and the degrees at the ends of
    the queue beside each token.

    Args:
        max_nodes: largest number of nodes of a graph.
        max_length: largest number of tokens of a graph, see :func:`~discrete_grpo.domains.graph_sequences.most_tokens`.
        labels: names of the classes of nodes and edges; None for plain graphs.
        layers: depth of the transformer.
        heads: attention heads of the transformer.
        width: width of its hidden states.
        dropout: dropout probability in training.
        temperature: temperature of sampling.
        seed: random seed of the initial weights; the global random state is not changed.

    Raises:
        ValueError: for a size that is no whole number or out of its range.
    """
    for name, size in {"max_nodes": max_nodes, "max_length": max_length, "layers": layers, "heads": heads, "width": width}.items():
        check_whole(name, size, least=1)
    classes = (1, 1) if labels is None else (len(labels.nodes), max(1, len(labels.edges) - 1))
    tokenizer = Tokenizer(vocabulary(max_nodes, *classes), PATTERN)
    grammar = GraphSequenceGrammar(max_nodes, *classes)
    sizes = {"layers": layers, "heads": heads, "width": width}
    config = GPTConfig(len(tokenizer), max_length, **sizes, dropout=dropout, feature_sizes=grammar.feature_sizes)
    check_sizes("", config, GPTConfig)
    with seeded(seed):
        network = GPT(config)
    policy = TokenPolicy(network, tokenizer, max_length=max_length, truncation=Truncation(temperature), grammar=grammar)
    return DecodedPolicy(policy, GraphSequences(labels))


def _graphs(recipe: PretrainGraphSequencesRecipe) -> tuple[GraphSplits, Labels | None, dict[str, Any]]:
    """The splits of the data, the names of its classes (None without any), and the metadata needed to read a file again."""
    limits: dict[str, Any] = {"max_nodes": recipe.max_nodes, "max_bytes": recipe.max_bytes}
    if not (recipe.data.endswith(".npz") or is_own(recipe.data)):
        check_no_attributes(recipe)
        return load_splits(recipe.data, **limits), None, {}
    own = own_graphs(recipe.data, **attributes_of(recipe), **limits)
    check_nodes(own.sizes)
    labels = None if own.labels.plain else own.labels
    again = reading_options(recipe) if is_own(recipe.data) or labels is not None else {}
    return labelled_splits(own, recipe.test_share), labels, again


def _max_length(recipe: PretrainGraphSequencesRecipe, splits: GraphSplits, labels: Labels | None) -> int:
    """The most tokens of a training graph, or the number that the recipe gives."""
    longest = max(most_tokens(graph, labels) for graph in splits.train)
    if recipe.max_length is not None:
        check_range("max_length", recipe.max_length, least=longest, note=", the most tokens of a graph of the data")
    return recipe.max_length or longest


def run_pretrain_graph_sequences(recipe: PretrainGraphSequencesRecipe, *, resume: bool = False) -> Path:
    """Pretrain an autoregressive policy of graphs; returns the folder of the exported policy."""
    splits, labels, again = _graphs(recipe)
    config, most, longest = recipe.pretrain, max(map(len, splits.train)), _max_length(recipe, splits, labels)
    policy = graph_sequence_policy(
        most,
        longest,
        labels,
        layers=recipe.layers,
        heads=recipe.heads,
        width=recipe.width,
        dropout=recipe.dropout,
        temperature=recipe.temperature,
        seed=config.seed,
    )
    data = _written(splits.train, policy, labels, recipe, recipe.orders)
    held_out = [graph for graph in splits.test if len(graph) <= most and most_tokens(graph, labels) <= longest]
    test = _written(held_out, policy, labels, recipe, min(recipe.orders, TEST_ORDERS)) if held_out else None
    shape = recipe.shape or shape_of(recipe.data)
    metadata = graph_metadata("graphs", recipe, splits.name, len(data.graphs), shape, labels, again)
    reference = GraphReference(splits, shape, labels=labels)
    fresh = fresh_graph_metrics(recipe.evaluation_samples, partial(evaluate, reference=reference))
    both = with_held_out(fresh, test, config.batch_size)
    return fit(policy, data, recipe, metadata=metadata, evaluate=both, resume=resume)


def _written(
    graphs: Sequence[Any],
    policy: DecodedPolicy,
    labels: Labels | None,
    recipe: PretrainGraphSequencesRecipe,
    orders: int,
) -> GraphTokens:
    """Graphs of networkx in random orders, as the recipe writes them."""
    settings = {"orders": orders, "candidates": recipe.candidates, "seed": recipe.pretrain.seed}
    return graph_tokens(graphs, policy.policy.tokenizer, labels, **settings)
