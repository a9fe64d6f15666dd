"""GRPO of a discrete graph diffusion model in one file: the idea of discrete-grpo, with torch and RDKit alone.
Run it with ``python examples/nano_graph_grpo.py``; it takes about one minute on one CPU core.

1. Data. A molecule of n atoms is a graph with n nodes and P = n(n-1)/2 unordered pairs. Each of these n + P *sites* has one
   class: the element of an atom, the bond order (or "no bond") of a pair. A graph is the list [atoms [B, n], pairs [B, P]].
2. Diffusion. Noise replaces the class of each site by a draw from the marginal distribution of the data. A network learns
   p(x_0 | x_t), the clean classes given the noisy ones. (D3PM: arXiv 2107.03006; DiGress: arXiv 2209.14734)
3. The policy. Sampling takes T reverse steps from noise, t = 1, to data, t = 0. A step from t to s = t - 1/T draws x_s from
   p(x_s | x_t), a product of categorical distributions over sites: its log-probability and KL are exact sums.
4. GRPO. Molecules are drawn in groups and rewarded. The steps that led to a molecule better than its group become more
   likely, within a clipped ratio, and the KL to the model before GRPO is penalised. (arXiv 2402.03300)
"""

import copy
from itertools import combinations, product

import torch
from rdkit import Chem, rdBase
from rdkit.Chem import QED
from torch import Tensor, nn

ELEMENTS = ["C", "N", "O", "F"]
BONDS = [None, Chem.BondType.SINGLE, Chem.BondType.DOUBLE, Chem.BondType.TRIPLE]
SIZES = [5, 6, 7]  # numbers of atoms; a batch or group holds graphs of one size, so nothing is padded
T, GROUP_SIZE, INNER_UPDATES = 12, 24, 2  # reverse steps, samples per group, updates per rollout
PAIR_WEIGHT, EPSILON, BETA = 5.0, 0.2, 0.03  # lambda of DiGress's loss, clip range of the ratio, weight of the KL
Graph = list[Tensor]  # classes, logits or probabilities of the atoms and of the pairs

# 1. Data ------------------------------------------------------------------------------------------------------------
STARTS = "C N O F CC OC NC FC N#CC C=C C#C O=C CC(C) CC(=O) NC(=O) OC(=O) C1CC1 C1CCC1 C1OC1 C1COC1 C1CCCC1 c1ccoc1"
MIDDLES = "C O N CC CO CN C(C) C(O) C(F) C(=O) C(=O)N C(=O)O C=C C#C C1CC1"
ENDS = "C O N F CC C(C)C C#N C=O C(=O)O C(=O)N C=C C#C C1CC1 C(F)F CO CN OC NC C1CO1"


def load_data() -> dict[int, Graph]:
    """Every molecule made of a start, a middle (or none) and an end: graphs by number of atoms."""
    smiles = map("".join, product(STARTS.split(), ["", *MIDDLES.split()], ENDS.split()))
    molecules = {Chem.MolToSmiles(m): m for m in map(Chem.MolFromSmiles, smiles)}.values()  # each once
    graphs = {n: [encode(m) for m in molecules if m.GetNumAtoms() == n] for n in SIZES}
    return {n: [torch.tensor(classes) for classes in zip(*rows)] for n, rows in graphs.items()}


def encode(molecule: Chem.Mol) -> tuple[list[int], list[int]]:
    """Classes of the atoms and of the pairs (0,1), (0,2), ..., (1,2), ... of a molecule."""
    Chem.Kekulize(molecule, clearAromaticFlags=True)  # aromatic rings get single and double bonds
    atoms = [ELEMENTS.index(atom.GetSymbol()) for atom in molecule.GetAtoms()]
    bonds = [molecule.GetBondBetweenAtoms(i, j) for i, j in combinations(range(len(atoms)), 2)]
    return atoms, [BONDS.index(bond.GetBondType() if bond else None) for bond in bonds]


def decode(atoms: list[int], pairs: list[int]) -> Chem.Mol | None:
    """The molecule of these classes; None if it breaks a valence or is in pieces. Nothing is repaired."""
    molecule = Chem.RWMol()
    for x in atoms:
        molecule.AddAtom(Chem.Atom(ELEMENTS[x]))
    for (i, j), x in zip(combinations(range(len(atoms)), 2), pairs):
        if x > 0:
            molecule.AddBond(i, j, BONDS[x])
    with rdBase.BlockLogs():
        broken = Chem.SanitizeMol(molecule, catchErrors=True)
    return None if broken or len(Chem.GetMolFrags(molecule)) > 1 else molecule


def reward(molecule: Chem.Mol | None) -> float:
    """QED (drug-likeness, 0 to 1) of a valid molecule, 0 of an invalid one. Any other function can stand here."""
    return QED.qed(molecule) if molecule else 0.0


# 2. Diffusion -------------------------------------------------------------------------------------------------------
def alpha_bar(t: Tensor) -> Tensor:
    """Probability that a site has kept its class until t (cosine schedule): 1 at t = 0, 0 at t = 1."""
    return torch.cos(torch.pi / 2 * t) ** 2


def transition_matrix(keep: Tensor, marginal: Tensor) -> Tensor:
    """Q = keep I + (1 - keep) 1 m^T, where Q[b, i, j] is the probability of going from class i to j: [B, C, C]."""
    keep = keep[:, None, None]
    return keep * torch.eye(len(marginal)) + (1 - keep) * marginal


def sample(probs: Tensor, generator: torch.Generator) -> Tensor:
    """One class from each distribution in [..., C]."""
    return torch.multinomial(probs.flatten(0, -2), 1, generator=generator).view(probs.shape[:-1])


def posterior(p_x0: Tensor, x_t: Tensor, t: Tensor, s: Tensor, marginal: Tensor) -> Tensor:
    """p(x_s | x_t) = sum_{x_0} q(x_s | x_t, x_0) p(x_0 | x_t) of every site, where by Bayes' rule
    q(x_s | x_t, x_0) = q(x_s | x_0) q(x_t | x_s) / q(x_t | x_0), exactly: [B, sites, C]."""
    q_s = transition_matrix(alpha_bar(s), marginal)  # [B, x_0, x_s]
    q_t = transition_matrix(alpha_bar(t), marginal)  # [B, x_0, x_t]
    q_st = transition_matrix(alpha_bar(t) / alpha_bar(s), marginal)  # [B, x_s, x_t]
    q = torch.einsum("bik,bkj->bjik", q_s, q_st) / q_t.transpose(1, 2)[..., None]  # [B, x_t, x_0, x_s]
    q = q[torch.arange(len(t))[:, None], x_t]  # [B, sites, x_0, x_s]
    return torch.einsum("bui,buik->buk", p_x0, q)


def mlp(inputs: int, width: int) -> nn.Module:
    return nn.Sequential(nn.LayerNorm(inputs), nn.Linear(inputs, width), nn.SiLU(), nn.Linear(width, width))


class Denoiser(nn.Module):
    """Logits of p(x_0 | x_t) for atoms [B, n, C] and pairs [B, P, C]; relabelling the atoms relabels them alike."""

    def __init__(self, data: dict[int, Graph], generator: torch.Generator, width: int = 32, layers: int = 3) -> None:
        super().__init__()
        counts = [torch.cat([x.flatten() for x in kind]).bincount().float() for kind in zip(*data.values())]
        self.marginals = nn.ParameterList([nn.Parameter(c / c.sum(), requires_grad=False) for c in counts])
        self.atom, self.pair = nn.Embedding(len(ELEMENTS), width), nn.Embedding(len(BONDS), width)
        self.time = nn.Sequential(nn.Linear(1, width), nn.SiLU(), nn.Linear(width, width))
        self.walks = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.update_pairs = nn.ModuleList(mlp(3 * width, width) for _ in range(layers))
        self.update_atoms = nn.ModuleList(mlp(2 * width, width) for _ in range(layers))
        self.to_atom, self.to_pair = nn.Linear(width, len(ELEMENTS)), nn.Linear(width, len(BONDS))
        for weight in (w for w in self.parameters() if w.ndim > 1):
            nn.init.xavier_uniform_(weight, generator=generator)
        for bias in (w for name, w in self.named_parameters() if name.endswith("bias")):
            nn.init.zeros_(bias)

    def forward(self, x_t: Graph, t: Tensor) -> Graph:
        (atoms, pairs), time = x_t, self.time(t[:, None])
        i, j = torch.triu_indices(atoms.shape[1], atoms.shape[1], 1)  # each unordered pair once, i < j
        matrix = pairs.new_zeros(*atoms.shape, atoms.shape[1])
        matrix[:, i, j] = matrix[:, j, i] = pairs
        h, e = self.atom(atoms) + time[:, None], self.pair(matrix) + time[:, None, None]  # [B, n, D] and [B, n, n, D]
        for walk, update_pairs, update_atoms in zip(self.walks, self.update_pairs, self.update_atoms):
            ends, a = h[:, :, None] + h[:, None, :], walk(e)
            walks = torch.einsum("bikd,bkjd->bijd", a, a)  # sum over walks i -> k -> j, which shows rings
            e = e + update_pairs(torch.cat([e, ends, walks], -1))
            h = h + update_atoms(torch.cat([h, e.sum(2)], -1))
        return [self.to_atom(h), self.to_pair(e[:, i, j])]


def diffusion_loss(network: Denoiser, x_0: Graph, generator: torch.Generator) -> Tensor:
    """Cross-entropy of x_0 given x_t at random times, of atoms + lambda times of pairs (DiGress, Eq. 2)."""
    t = torch.randint(1, T + 1, (len(x_0[0]),), generator=generator) / T
    q_t = [transition_matrix(alpha_bar(t), m)[torch.arange(len(t))[:, None], x] for x, m in zip(x_0, network.marginals)]
    x_t = [sample(q, generator) for q in q_t]  # q(x_t | x_0) is the row of class x_0
    atoms, pairs = (nn.functional.cross_entropy(z.transpose(1, 2), x) for z, x in zip(network(x_t, t), x_0))
    return atoms + PAIR_WEIGHT * pairs


# 3. The policy ------------------------------------------------------------------------------------------------------
def reverse_step(network: Denoiser, x_t: Graph, step: Tensor) -> Graph:
    """p(x_s | x_t) for atoms [B, n, C] and pairs [B, P, C]; step k = 0 ... T-1 starts at t = 1 - k/T."""
    t, s = ((T - k).to(network.marginals[0]) / T for k in (step, step + 1))
    p_x0 = [logits.softmax(-1).clamp_min(1e-30) for logits in network(x_t, t)]  # no log(0) later
    return [posterior(p, x, t, s, m) for p, x, m in zip(p_x0, x_t, network.marginals)]


@torch.no_grad()
def rollout(network: Denoiser, size: int, n: int, generator: torch.Generator) -> tuple[Graph, list[Chem.Mol | None]]:
    """Trajectories x_1 -> ... -> x_0 of graphs of n atoms, atoms [G, T+1, n] and pairs [G, T+1, P]; the molecules x_0."""
    states = [[sample(m.repeat(size, k, 1), generator) for m, k in zip(network.marginals, (n, n * (n - 1) // 2))]]  # x_1
    for k in range(T):
        probs = reverse_step(network, states[-1], torch.full((size,), k))
        states.append([sample(p, generator) for p in probs])
    trajectory = [torch.stack(kind, 1) for kind in zip(*states)]
    return trajectory, [decode(*graph) for graph in zip(*(kind[:, -1].tolist() for kind in trajectory))]


def step_probs(network: Denoiser, trajectory: Graph) -> Graph:
    """p(x_s | x_t) at every step of stored trajectories, differentiable: atoms [G, T, n, C], pairs [G, T, P, C]."""
    x_t = [x[:, :-1].flatten(0, 1) for x in trajectory]
    step = torch.arange(T).repeat(len(trajectory[0]))
    return [p.unflatten(0, (-1, T)) for p in reverse_step(network, x_t, step)]


def log_prob(probs: Graph, trajectory: Graph) -> Tensor:
    """log p(x_s | x_t) = sum_i log p(atom_i) + sum_{i<j} log p(pair_ij) of the classes drawn: [G, T]."""
    return sum(p.gather(-1, x[:, 1:, :, None]).log().sum((-2, -1)) for p, x in zip(probs, trajectory))


def kl_divergence(probs: Graph, reference: Graph) -> Tensor:
    """KL(p || q) = sum over atoms and pairs i < j of sum_c p(c) log[p(c) / q(c)], exact at every step: [G, T]."""
    return sum((p * (p.log() - q.log())).sum((-2, -1)) for p, q in zip(probs, reference))


# 4. GRPO ------------------------------------------------------------------------------------------------------------
def group_advantages(rewards: Tensor) -> Tensor:
    """A_i = (r_i - mean(r)) / (std(r) + 1e-4) within a group: [G]."""
    return (rewards - rewards.mean()) / (rewards.std() + 1e-4)


def grpo_loss(logp: Tensor, old_logp: Tensor, advantages: Tensor, kl: Tensor) -> Tensor:
    """Mean over trajectories and steps of -min(r A, clip(r, 1-eps, 1+eps) A) + beta KL, with r = p / p_old."""
    ratio, a = (logp - old_logp).exp(), advantages[:, None]
    surrogate = torch.minimum(ratio * a, ratio.clamp(1 - EPSILON, 1 + EPSILON) * a)
    return (-surrogate + BETA * kl).mean()


# 5. Training: cross-entropy on the data, then GRPO on the model's own samples ---------------------------------------
def train_diffusion(network: Denoiser, data: dict[int, Graph], steps: int, generator: torch.Generator) -> None:
    optimizer = torch.optim.Adam(network.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for step in range(steps):
        graphs = data[SIZES[step % len(SIZES)]]
        rows = torch.randint(len(graphs[0]), (64,), generator=generator)
        loss = diffusion_loss(network, [x[rows] for x in graphs], generator)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 100 == 99:
            print(f"diffusion step {step + 1}: loss {loss:.2f}")


def train_grpo(network: Denoiser, updates: int, generator: torch.Generator) -> None:
    reference = copy.deepcopy(network).requires_grad_(False)  # stays the model before GRPO
    optimizer = torch.optim.Adam(network.parameters(), lr=5e-4)
    for update in range(updates):
        groups = []
        for n in SIZES:  # one group per size
            trajectory, molecules = rollout(network, GROUP_SIZE, n, generator)
            rewards = torch.tensor([reward(m) for m in molecules])
            with torch.no_grad():  # "old" is the policy that drew the trajectories
                old_logp = log_prob(step_probs(network, trajectory), trajectory)
                groups.append((trajectory, rewards, old_logp, step_probs(reference, trajectory)))
        for _ in range(INNER_UPDATES):
            optimizer.zero_grad()
            for trajectory, rewards, old_logp, ref_probs in groups:
                probs = step_probs(network, trajectory)
                logp, kl = log_prob(probs, trajectory), kl_divergence(probs, ref_probs)
                (grpo_loss(logp, old_logp, group_advantages(rewards), kl) / len(SIZES)).backward()
            optimizer.step()
        mean = sum(rewards.mean() for _, rewards, *_ in groups) / len(SIZES)
        print(f"GRPO update {update + 1}: reward {mean:.3f}, KL {kl.sum(1).mean():.2f} nats per trajectory of {n} atoms")


def evaluate(name: str, network: Denoiser, samples: int) -> float:
    """Print validity, share of distinct molecules and mean reward of fresh samples; return the reward."""
    generator = torch.Generator().manual_seed(1)
    molecules = [m for n in SIZES for m in rollout(network, samples // len(SIZES), n, generator)[1]]
    valid = [Chem.MolToSmiles(m) for m in molecules if m]
    mean = sum(map(reward, molecules)) / len(molecules)
    print(f"{name:24} valid {len(valid) / samples:.3f}   distinct {len(set(valid)) / samples:.3f}   reward {mean:.3f}")
    return mean


def main(diffusion_steps: int = 600, grpo_updates: int = 25, samples: int = 300, seed: int = 0) -> list[float]:
    data, generator = load_data(), torch.Generator().manual_seed(seed)
    network = Denoiser(data, generator)
    untrained = evaluate("untrained network", network, samples)
    train_diffusion(network, data, diffusion_steps, generator)
    before = evaluate("before GRPO", network, samples)
    train_grpo(network, grpo_updates, generator)
    return [untrained, before, evaluate("after GRPO", network, samples)]


if __name__ == "__main__":
    main()
