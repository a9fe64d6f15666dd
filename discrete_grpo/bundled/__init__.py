"""Policies that come with the package: a checkpoint folder each."""
