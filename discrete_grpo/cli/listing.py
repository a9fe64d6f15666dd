"""The command ``list``: presets, bundled policies, rewards, data sets, tasks and methods with one line each."""

from __future__ import annotations

import ast

from discrete_grpo.cli.bundled import about_bundled, bundled_checkpoints
from discrete_grpo.cli.commands import RUNS, preset_about
from discrete_grpo.cli.signatures import find
from discrete_grpo.rewards.reference import public_rewards

__all__ = ["print_list"]


def _print_checkpoints() -> None:
    """Print the network, the training, the size and the licence of the data of each bundled checkpoint."""
    lines = about_bundled()
    for place, config in bundled_checkpoints():
        part, metadata = config["policy"], config["metadata"]
        while "policy" in part["init_args"]:  # a wrapper
            part = part["init_args"]["policy"]
        parts = [part, part["init_args"]["network"]] if "network" in part["init_args"] else [part]
        made = " with ".join(one["class_path"].rpartition(".")[2] for one in parts)
        data = metadata["data"]
        number, what = next((data[what], what) for what in ("molecules", "graphs", "lines", "images") if what in data)
        trained = f"{metadata['pretraining_steps']:,} updates on {number:,} {what}"
        if "grpo_steps" in metadata:
            trained += f", then {metadata['grpo_steps']} of GRPO on {', '.join(metadata['rewards'])}"
        size = len((place / "model.safetensors").read_bytes()) / 1e6
        about = next(section[place.name] for section in lines.values() if place.name in section)
        print(f"{place.name}: {about}")
        print(f"  {made}, {size:.1f} MB; {trained}\n  data: {data['licence']}\n")


def _keys(module: str, name: str) -> list[str]:
    """The keys of a mapping in a module, read from its source."""
    found = find(module, name)
    assert found is not None
    assert isinstance(found.node, ast.AnnAssign)
    assert isinstance(found.node.value, ast.Dict)
    return [str(ast.literal_eval(key)) for key in found.node.value.keys if key is not None]


def _print_section(title: str, lines: dict[str, str]) -> None:
    print(f"{title}:")
    width = max(map(len, lines), default=0)
    for name, about in lines.items():
        print(f"  {name.ljust(width)}  {about}")
    print()


def print_list(what: str | None = None) -> None:
    """Print presets, policies, rewards and data sets; or more about ``policies``, or ``tasks`` or ``methods`` of benchmarks."""
    if what == "policies":
        _print_checkpoints()
        return
    if what == "tasks":
        _print_tasks()
        return
    if what == "methods":
        from discrete_grpo.benchmarking.methods import METHODS

        _print_section("methods of discrete-grpo benchmark", {name: method.about for name, method in METHODS.items()})
        return
    for command in RUNS:
        if about := preset_about(command):
            _print_section(f"presets for {command}", about)
    for title, lines in about_bundled().items():
        _print_section(title, lines)
    print("rewards, by name or by import path:")
    for reward in public_rewards().values():
        print(f"  {reward.signature}\n      {reward.about}")
    print()
    named = _keys("discrete_grpo.datasets.synthetic_graphs", "NAMED_SETS")
    endings = _keys("discrete_grpo.datasets.graph_files", "SUFFIXES")
    sets = {
        "enumerated": "all small C/N/O/F molecules, bundled",
        "qm9, zinc250k": "molecules, downloaded at the first use",
        "FILE": "molecules of your own: SMILES (.smi, .smiles, .txt, .csv, .tsv), or with positions (.sdf, .xyz)",
        ", ".join(named): "graphs, made on this machine",
        "FILE or FOLDER": f"graphs of your own: {', '.join(endings)}, or .npz of splits",
    }
    _print_section("data sets", sets)
    print("more about bundled policies: discrete-grpo list policies")
    print("tasks and methods of benchmarks: discrete-grpo list tasks, discrete-grpo list methods")


def _print_tasks() -> None:
    from discrete_grpo.benchmarking.suites import SUITES
    from discrete_grpo.rewards.classifier import CLASSIFIED

    for suite in SUITES.values():
        title = f"{suite.name}: {suite.about} (policy {suite.policy}, {suite.budget:,} calls)"
        _print_section(title, {**suite.lines(), **(CLASSIFIED if suite.classified else {})})
