"""Run a notebook without Jupyter, in a temporary directory, and write its outputs into it:

    python docs/make_notebook.py examples/first_steps.ipynb

The value of the last expression of a cell is its output, as in Jupyter.
"""

from __future__ import annotations

import ast
import contextlib
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

TEXT = 200
"""Longest output as plain text, which is seen where HTML is not."""


def run_cell(source: str, names: dict[str, Any]) -> Any:
    """Execute the code of a cell; returns the value of its last expression, or None."""
    *body, last = ast.parse(source).body
    exec(compile(ast.Module(body if isinstance(last, ast.Expr) else [*body, last], []), "<cell>", "exec"), names)
    return eval(compile(ast.Expression(last.value), "<cell>", "eval"), names) if isinstance(last, ast.Expr) else None


def code_cells(notebook: dict[str, Any]) -> list[dict[str, Any]]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def outputs_of(value: Any, number: int) -> list[dict[str, Any]]:
    """The value as the output of a cell in the format of a notebook."""
    if value is None:
        return []
    data = {"text/plain": repr(value)[:TEXT].splitlines(keepends=True)}
    if hasattr(value, "_repr_html_"):
        data["text/html"] = value._repr_html_().splitlines(keepends=True)
    return [{"output_type": "execute_result", "execution_count": number, "metadata": {}, "data": data}]


def main(path: Path) -> None:
    notebook, names = json.loads(path.read_text(encoding="utf-8")), dict[str, Any]()
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for number, cell in enumerate(code_cells(notebook), 1):
            value = run_cell("".join(cell["source"]), names)
            cell |= {"execution_count": number, "outputs": outputs_of(value, number)}
    path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
