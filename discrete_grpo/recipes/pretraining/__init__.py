"""Training by likelihood: one recipe per kind of policies, further training of a policy, and what the recipes share."""
