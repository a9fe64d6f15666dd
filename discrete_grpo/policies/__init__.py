"""Policies: a network and the rule by which it draws samples; one file each."""
