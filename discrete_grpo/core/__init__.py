"""Policy-gradient training of discrete sequences of choices: log-probs, advantages, losses and KL. It knows no family of policies."""
