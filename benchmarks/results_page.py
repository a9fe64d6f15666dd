"""Put the tables of ``discrete-grpo benchmark`` into ``docs/results-optimisation.md``, as ``python -m benchmarks.results_page``.

Each table stands between ``<!-- FOLDER -->`` and ``<!-- end -->``.
"""

from __future__ import annotations

import re

from benchmarks.common import ROOT
from discrete_grpo.benchmarking.markdown import markdown_table
from discrete_grpo.benchmarking.results import read_results
from discrete_grpo.core.atomic import atomic_write

PAGE = ROOT / "docs" / "results-optimisation.md"
BLOCK = re.compile(r"(<!-- (benchmarks/results/\S+) -->\n)(.*?)(<!-- end -->)", re.S)


def with_tables(page: str) -> str:
    """The page with the table of every folder that it names."""
    return BLOCK.sub(lambda found: found[1] + markdown_table(read_results(ROOT / found[2])) + found[4], page)


def main() -> None:
    """Write the page."""
    page = with_tables(PAGE.read_text(encoding="utf-8"))
    with atomic_write(PAGE, "w") as file:
        file.write(page)
    print(PAGE)


if __name__ == "__main__":
    main()
