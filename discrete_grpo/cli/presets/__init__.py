"""YAML settings of the runs that come with the package."""
