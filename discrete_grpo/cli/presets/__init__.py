"""YAML settings of the runs that are included in the package."""
