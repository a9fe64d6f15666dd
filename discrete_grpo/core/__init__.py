"""Log-probs, advantages, losses and KL of discrete trajectories, for any policy that follows the protocol."""
