"""What the wheel holds, what it asks for, and that the folder `datasets` never hides another package of that name."""

from __future__ import annotations

import configparser
import fnmatch
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = {
    "discrete_grpo": ROOT / "discrete_grpo",
    "discrete_grpo.models": ROOT / "models",
    "discrete_grpo.datasets": ROOT / "datasets",
}

SETUP = configparser.ConfigParser()
SETUP.read(ROOT / "setup.cfg", encoding="utf-8")


def lines(section: str, option: str) -> list[str]:
    return [line.strip() for line in SETUP[section][option].splitlines() if line.strip()]


def packages() -> dict[str, Path]:
    """Every folder with code -> the package it is."""
    found = {}
    for name, top in FOLDERS.items():
        for file in top.rglob("*.py"):
            inner = file.parent.relative_to(top).parts
            if name != "discrete_grpo" or inner[:1] not in (("models",), ("datasets",)):  # the links
                found[".".join((name, *inner))] = file.parent
    return found


def data_files(folder: Path) -> list[str]:
    """Files that are no code, by the package that is nearest above them; the links are left out."""
    homes = set(packages().values())
    links = {ROOT / "discrete_grpo/models", ROOT / "discrete_grpo/datasets"}
    files = [p for p in folder.rglob("*") if p.is_file() and p.suffix not in (".py", ".pyc", ".md")]
    own = [p for p in files if next(q for q in p.parents if q in homes) == folder and not links & set(p.parents)]
    return [p.relative_to(folder).as_posix() for p in own]


def test_setup_cfg_names_every_folder_with_code() -> None:
    assert sorted(lines("options", "packages")) == sorted(packages())
    mapped = {k.strip(): v.strip() for k, v in (line.split("=") for line in lines("options", "package_dir"))}
    assert mapped == {name: folder.name for name, folder in FOLDERS.items()}


@pytest.mark.parametrize("name", ["models", "datasets"])
def test_the_links_lead_to_the_folders(name: str) -> None:
    link = ROOT / "discrete_grpo" / name
    if not link.is_symlink():
        pytest.skip("a checkout without links")
    assert link.readlink() == Path("..") / name  # relative, so that it holds wherever the clone is
    assert link.resolve() == ROOT / name


@pytest.mark.parametrize("name", ["models", "datasets"])
def test_no_init_in_the_folders(name: str) -> None:
    assert not list((ROOT / name).rglob("__init__.py"))
    assert (ROOT / name / "README.md").is_file()


def test_the_wheel_takes_every_data_file() -> None:
    patterns = {name: lines("options.package_data", name) for name in SETUP["options.package_data"]}
    counted = 0
    for name, folder in packages().items():
        for file in data_files(folder):
            counted += 1
            depth = [p for p in patterns.get(name, []) if p.count("/") == file.count("/")]
            assert any(fnmatch.fnmatchcase(file, p) for p in depth), f"{name}: {file} is in no pattern of package_data"
    assert counted >= 6  # py.typed, three presets, the enumeration, a bundled policy
    assert (ROOT / "discrete_grpo/py.typed").is_file()
    assert list((ROOT / "datasets/data").glob("*.smi.gz"))
    assert list((ROOT / "discrete_grpo/bundled").glob("*/model.safetensors"))


@pytest.mark.parametrize("where", ["after the root", "before the root"])
def test_an_installed_datasets_wins_at_the_repository_root(tmp_path: Path, where: str) -> None:
    """The HuggingFace claim: without __init__.py the folder is a namespace, which any regular package on the path outranks."""
    package = tmp_path / "datasets"
    package.mkdir()
    (package / "__init__.py").write_text("marker = 'the installed one'\n")
    path = [str(tmp_path)] if where == "after the root" else [str(tmp_path), str(ROOT)]
    code = "import sys; assert sys.path[0] == ''; import datasets; print(datasets.marker)\n"
    code += "import discrete_grpo.datasets as ours; print(list(ours.__path__)[0])"
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONSAFEPATH"} | {"PYTHONPATH": os.pathsep.join(path)}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=environment | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    marker, ours = done.stdout.split("\n")[:2]
    assert marker == "the installed one"
    assert Path(ours).resolve() == ROOT / "datasets"


def test_an_editable_install_puts_the_root_on_the_path() -> None:
    """The finder that setuptools installs otherwise is unknown to type checkers, which then see no types."""
    assert SETUP["editable_wheel"]["mode"] == "compat"


def test_type_checkers_follow_the_path_of_the_editable_install() -> None:
    """A .pth file that holds a folder is followed by mypy and pyright; one that imports a finder is not."""
    found = [path for site in map(Path, sys.path) if site.is_dir() for path in site.glob("__editable__*discrete_grpo*.pth")]
    if not found:
        pytest.skip("this environment has no editable install")
    assert [Path(line) for line in found[0].read_text(encoding="utf-8").split()] == [ROOT]


def requirement(line: str) -> str:
    """The project a requirement names, spelt as pip compares it."""
    match = re.match(r"[A-Za-z0-9._-]+", line)
    assert match is not None, line
    return re.sub(r"[-_.]+", "-", match[0]).lower()


def constraints() -> list[str]:
    text = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    return [line for line in (raw.split("#")[0].strip() for raw in text.splitlines()) if line]


def test_every_direct_dependency_is_pinned() -> None:
    direct = lines("options", "install_requires") + [
        line for extra in ("test", "dev") for line in lines("options.extras_require", extra)
    ]
    pinned = {requirement(line) for line in constraints()}
    built = {"build"}  # a tool for releases, of any version
    assert {requirement(line) for line in direct} - built <= pinned
    assert "torch==2.13.0" in constraints()
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+( ; python_version (<|>=) \"[\d.]+\")?", line) for line in constraints())


def test_no_address_and_no_registry_of_packages() -> None:
    for name in ("constraints.txt", "setup.cfg", "pyproject.toml", "Makefile"):
        text = (ROOT / name).read_text(encoding="utf-8")
        assert not re.search(r"https?://|index-url|find-links|git\+| @ ", text), name


def test_third_party_imports_are_declared() -> None:
    from tests.repository.test_layering import FILES, imports

    known = {
        "torch_geometric": "torch-geometric",
        "yaml": "pyyaml",
        "sklearn": "scikit-learn",
        "skimage": "scikit-image",
        "PIL": "pillow",
    }
    used = {found.split(".")[0] for file in FILES.values() for found in imports(file.read_text(encoding="utf-8"))}
    used -= set(sys.stdlib_module_names) | {"discrete_grpo", "__future__"}
    declared = {requirement(line) for line in lines("options", "install_requires")}
    extras = {
        name: {requirement(line) for line in lines("options.extras_require", name)} for name in SETUP["options.extras_require"]
    }
    optional = extras["images"] | extras["selfies"] | extras["huggingface"]
    services = set().union(*(extras[name] for name in ("docking", "ray", "tensorboard", "wandb")))  # tests replace or skip these
    assert {known.get(name, name) for name in used} <= declared | optional | services
    assert not declared & optional
    assert optional <= extras["test"]


def test_python_versions() -> None:
    assert SETUP["options"]["python_requires"] == ">=3.10"
    assert 'target-version = "py310"' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    versions = [c.rpartition(":: ")[2] for c in lines("metadata", "classifiers") if re.search(r":: 3\.\d+$", c)]
    assert versions == ["3.10", "3.11", "3.12", "3.13"]
    assert SETUP["options.entry_points"]["console_scripts"].split() == ["discrete-grpo", "=", "discrete_grpo.cli:main"]
