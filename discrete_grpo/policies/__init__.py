"""Policies: a network with the rule by which it draws samples, one file per policy."""
