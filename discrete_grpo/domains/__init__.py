"""Graphs, molecules, strings and images, and the conversions between tensors of classes and these objects."""
