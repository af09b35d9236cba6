"""Write a page of the figures of a report, with its pictures in a folder of the same name:

    python docs/make_gallery.py REPORT_FOLDER docs/gallery.md Gallery
    python docs/make_gallery.py REPORT_FOLDER docs/results/figures.md "Figures of split-cifar100-20"

The page lists the commands that made it.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
from html import unescape
from pathlib import Path

from PIL import Image

ORDER = (
    "overview",
    "accuracy",
    "trade-off",
    "matrices-class-agnostic",
    "tasks",
    "neighbours",
    "norms",
    "overfitting",
    "memory",
    "similarity",
    "distributions",
    "maps",
    "storage",
    "health",
    "losses",
    "views",
)
WIDTH = 1500
"""Pixels at most."""
HEAD = """# {heading}

Figures of one report, made by one command from run directories. The page itself, `report.html`, also has the tables,
the main claims of the paper tested on these runs, and the command of every run.

```
{commands}
```

{scale}
"""


def main(report: Path, page: Path, heading: str) -> None:
    pictures = page.with_suffix("")
    pictures.mkdir(exist_ok=True)
    for old in pictures.glob("*.png"):
        old.unlink()
    parts = [HEAD.format(heading=heading, commands=commands(report), scale=scale(report))]
    for name in ORDER:
        for vector in sorted((report / "figures").glob(f"*-{name}.svg")):
            text = vector.read_text(encoding="utf-8")
            title, caption = (described(text, field) for field in ("title", "description"))
            shrink(vector.with_suffix(".png"), pictures / f"{name}.png")
            parts.append(f"## {title}\n\n{caption}\n\n![{title}]({pictures.name}/{name}.png)\n")
    page.write_text("\n".join(parts), encoding="utf-8")


def described(svg: str, field: str) -> str:
    """A field of the metadata that every figure carries."""
    match = re.search(rf"<dc:{field}>(.*?)</dc:{field}>", svg, re.DOTALL)
    return unescape(match[1]) if match else ""


def commands(report: Path) -> str:
    """A command line for all runs that differ only in method, seed and folder."""
    page = (report / "report.html").read_text(encoding="utf-8")
    methods: dict[str, list[str]] = {}
    seeds: dict[str, set[int]] = {}
    for command in re.findall(r'<li id="run-\d+".*?<code>(.*?)</code>', page):
        plain = re.sub(r" --(out|quiet)( [^-]\S*)?", "", unescape(command))
        if "--config" in plain:  # of a grid, whose file says how it would be typed
            plain = json.loads(Path(shlex.split(plain)[3]).read_text(encoding="utf-8"))["command"]
        method, benchmark, others, seed = re.fullmatch(
            r"osiris train --method (\S+) --benchmark (\S+)(.*?)(?: --seed (\d+))?", plain
        ).groups("0")  # pyright: ignore[reportOptionalMemberAccess]
        line = f"osiris sweep --methods {{}} --benchmarks {benchmark}{others}"
        if method not in methods.setdefault(line, []):
            methods[line].append(method)
        seeds.setdefault(line, set()).add(int(seed))
    shown = [
        f"{line.format(' '.join(names))} --seeds {' '.join(map(str, sorted(seeds[line])))} --out runs"
        for line, names in methods.items()
    ]
    return "\n".join([*shown, "osiris report runs --out report"])


def scale(report: Path) -> str:
    """The sentence under the heading of the page."""
    page = (report / "report.html").read_text(encoding="utf-8")
    lead = re.search(r'<p class="lead">(.*?)</p>', page)
    return unescape(re.sub(r"<[^>]+>", "", lead[1])) if lead else ""


def shrink(source: Path, target: Path) -> None:
    with Image.open(source) as image:
        width = min(WIDTH, image.width)
        small = image.convert("RGB").resize(
            (width, round(image.height * width / image.width)), Image.Resampling.LANCZOS
        )
        small.quantize(192, method=Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE).save(target, optimize=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
