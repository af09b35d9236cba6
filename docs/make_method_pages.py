"""The factual parts of docs/methods/*.md, made from the code and from the published numbers.

    python docs/make_method_pages.py            write them, and draw the pictures
    python docs/make_method_pages.py --check    say which pages are out of date, exit code 1

The prose of a page is written in the page. What stands between `<!-- begin NAME -->` and `<!-- end NAME -->` is written
here, so that it cannot drift away from the code. A new method joins with a page that has the marks.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from fractions import Fraction
from functools import cache
from pathlib import Path

import method_pictures
import torch

from osiris.evaluation.config import METRICS
from osiris.evaluation.statistics import Sample
from osiris.files import write_text
from osiris.framework.cost import total_cost
from osiris.framework.methods import READINGS, ZOO, find_method
from osiris.models.config import EncoderConfig, ProjectorConfig
from osiris.paper import published
from osiris.paper.table1 import COLUMNS, Facts, facts, group_of
from osiris.reporting.comparison import published_table
from osiris.reporting.framework_tables import cost_table, methods_table, storage_table

FOLDER = Path(__file__).parent / "methods"
RESULTS = Path(__file__).parent / "results"
LINK = "[results](../results/README.md)"
MARK = re.compile(r"<!-- begin (?P<name>[a-z]+)(?: (?P<argument>\S+))? -->\n.*?<!-- end (?P=name) -->", re.DOTALL)
ROLES = {"current": "L_current", "cross": "L_cross", "past": "L_past"}
ABOUT = "ResNet-18, 500 images of 32x32"


@cache
def method_facts(name: str) -> Facts:
    return facts(name, EncoderConfig(), ProjectorConfig(), memory_size=500, image_size=32)


def weight(value: float) -> str:
    return {Fraction(1): "", Fraction(1, 2): "½ · "}.get(Fraction(value), f"{value:g} · ")


def loss(name: str) -> str:
    """The sum, then a row for each term: what it is called in the log, and which networks it reaches."""
    row = method_facts(name)
    terms = "\n  + ".join(f"{weight(term.weight)}{term.formula}" for term in row.terms)
    lines = ["```", f"L = {terms}", "```", ""]
    lines += ["| logged as | part | term | weight | gradient reaches | learns from |", "|---|---|---|---|---|---|"]
    for term in row.terms:
        seen = ", ".join(term.learns_from) or "no images"
        reached = ", ".join(f"`{symbol}`" for symbol in term.reaches)
        cells = (
            f"`{term.name}`",
            ROLES[term.role],
            f"`{term.kind}`: {term.formula}",
            f"{term.weight:g}",
            reached,
            seen,
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def picture(name: str) -> str:
    row = method_facts(name)
    words = "; ".join(f"{ROLES[term.role]} reaches {', '.join(term.reaches)}" for term in row.terms)
    return f"![The spaces of {name}: {words}](pictures/{method_pictures.file_name(name)}.svg)"


def command(name: str) -> str:
    return "\n".join(
        [
            "```",
            f"osiris train --method {name} --benchmark tinyworld --preset fast --seed 0",
            f"osiris train --method {name} --benchmark split-cifar100-20 --preset paper --seed 0",
            "```",
        ]
    )


def cost(name: str) -> str:
    """What it stores and computes, measured."""
    row = method_facts(name)
    passes = ", ".join(f"{value!s} for {key.replace(': ', ' on ')}" for key, value in row.cost.items())
    total = total_cost(row.cost)
    lines = [
        f"- Keeps beyond f and g: {'nothing' if row.stores == '-' else row.stores}.",
        f"- Extra storage ({ABOUT}): {row.storage.paper / 1e6:.1f} MB as the paper counts (64 bits per value), "
        f"{row.storage.stored / 1e6:.1f} MB as stored here.",
        f"- Encoder passes for each image of X, forward + backward: {passes}"
        + (f"; together {total}." if len(row.cost) > 1 else "."),
    ]
    if row.paper is not None:
        said = ", ".join(f"{name} {'yes' if tick else 'no'}" for name, tick in zip(COLUMNS, row.paper))
        seen = "the same" if not row.differences else f"differs in: {', '.join(row.differences)}"
        lines.append(f"- Table 1 of the paper: {said}; measured on the code: {seen}.")
    return "\n".join(lines)


def numbers(name: str) -> str:
    """The paper's results for one method: every benchmark and protocol that it reports."""
    lines = [f"| benchmark | KNN | {' | '.join(METRICS)} |", f"|---|---|{'---:|' * len(METRICS)}"]
    for protocol in published.protocols():
        tables = {benchmark: published.published(benchmark, protocol) for benchmark in published.benchmarks()}
        if name not in ZOO:
            tables = {"split-cifar100-20": published.published_ablation(protocol)}
        for benchmark, rows in tables.items():
            if name in rows:
                values = " | ".join(_value(rows[name].get(metric)) for metric in METRICS)
                lines.append(f"| {benchmark} | {protocol} | {values} |")
    if group_of(name) in ("later", "sums"):
        return "The paper of Osiris does not have this method."
    if len(lines) == 2:
        return "The paper prints no numbers for it (Fig. 2 has bars alone)."
    return "\n".join([*lines, "", f"Percent, mean ± deviation over three seeds; {published.published_settings()}."])


def _value(summary: Sample | None) -> str:
    return "-" if summary is None else f"{summary.mean:.1f} ± {summary.deviation:.1f}"


def table(kind: str) -> str:
    rows = [method_facts(name) for name in documented()]
    tables = {"methods": methods_table(rows), "storage": storage_table(rows, ABOUT), "cost": cost_table(rows)}
    return tables[kind].markdown().strip()


def ablation(protocol: str) -> str:
    return published_table("", protocol, "ablation").markdown().strip()


def ours(name: str) -> str:
    """This method's rows in the tables of our results: for each heading the one over the most seeds."""
    best: dict[str, list[str]] = {}
    heading = ""
    text = "\n\n".join(path.read_text(encoding="utf-8") for path in sorted(RESULTS.glob("*.md"), key=_tinyworld_first))
    for part in re.split(r"\n\s*\n", text):
        lines = [line.strip() for line in part.strip().splitlines()]
        columns = [cell.rstrip(" ↑↓") for cell in _cells(lines[0])] if lines else []
        if columns[:2] != ["method", "seeds"]:
            heading = lines[0].strip("#* ") if lines and lines[0].startswith(("#", "**")) else heading
            continue
        for cells in (_cells(line) for line in lines[2:]):
            row = dict(zip(columns, cells))
            if row["method"] == name and int(row["seeds"]) > int(best.get(heading, ["0"])[0]):
                best[heading] = [row["seeds"], *(row.get(metric, "-") for metric in METRICS)]
    if not best:
        return f"No runs of it in {LINK} yet."
    lines = [f"| data and protocol | seeds | {' | '.join(METRICS)} |", f"|---|---:|{'---:|' * len(METRICS)}"]
    lines += [f"| {_shortened(title)} | {' | '.join(values)} |" for title, values in best.items()]
    setting = "the preset `fast`"
    about = f"Percent, mean ± deviation over seeds; {setting}. Commands: {LINK}."
    return "\n".join([*lines, "", about])


def _tinyworld_first(path: Path) -> tuple[bool, str]:
    return path.stem != "tinyworld", path.stem


def _cells(line: str) -> list[str]:
    """Without the marks of best and second best, which mean nothing outside their table."""
    return [cell.replace("*", "").strip(" `") for cell in line.strip("|").split("|")] if line.startswith("|") else []


def _shortened(heading: str) -> str:
    """Without the fingerprint: it stands in the table of results."""
    return re.sub(r",? fingerprint [0-9a-f]+", "", heading)


BLOCKS: dict[str, Callable[[str], str]] = {
    "loss": loss,
    "picture": picture,
    "command": command,
    "cost": cost,
    "published": numbers,
    "table": table,
    "ablation": ablation,
    "ours": ours,
}


def renewed(text: str, page: str) -> str:
    """A page with its marked parts made anew; a mark's argument overrides the page's own method."""

    def block(found: re.Match[str]) -> str:
        name, argument = found["name"], found["argument"]
        head = f"<!-- begin {name}{f' {argument}' if argument else ''} -->"
        return f"{head}\n{BLOCKS[name](argument or page)}\n<!-- end {name} -->"

    return MARK.sub(block, text)


def stale() -> dict[Path, str]:
    """Pages that are out of date, with what they should say."""
    pages = {path: path.read_text(encoding="utf-8") for path in sorted(FOLDER.glob("*.md"))}
    wanted = {path: renewed(text, path.stem) for path, text in pages.items()}
    return {path: wanted[path] for path, text in pages.items() if wanted[path] != text}


def documented() -> list[str]:
    """Methods with a page; readings of er+ stand on er+'s page."""
    return [name for name in ZOO if (FOLDER / f"{name}.md").exists()]


def stale_pictures() -> list[str]:
    """Pictures that were drawn from another trace than today's."""
    old = []
    lacking = set(ZOO) - set(documented())
    for name in method_pictures.names():
        if name in lacking:
            continue
        path = FOLDER / "pictures" / f"{method_pictures.file_name(name)}.svg"
        if not path.exists() or method_pictures.drawn_from(path) != method_pictures.describe(find_method(name)):
            old.append(name)
    return old


def main(arguments: list[str]) -> int:
    torch.set_num_threads(1)
    pages, lacking = stale(), [name for name in ZOO if name not in documented()]
    if arguments == ["--check"]:
        problems = [f"{path} is out of date" for path in pages]
        problems += [f"the picture of {name} is out of date" for name in stale_pictures()]
        print("\n".join(problems) or f"{len(ZOO)} methods and {len(READINGS)} readings: pages and pictures agree")
        return 1 if problems else 0
    method_pictures.main(FOLDER / "pictures")
    for path, text in pages.items():
        write_text(path, text)
    print(f"{len(pages)} pages written" + (f"; without a page: {', '.join(lacking)}" if lacking else ""))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
