"""What a test needs, read from its source: which cases train whole runs or start processes, and which touch a file.

    python tests/support/needs.py src/osiris/learner/undo.py

prints the test files for `make check F=src/osiris/learner/undo.py`.
"""

import ast
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import grimp

TESTS = Path(__file__).parents[1]
ROOT = TESTS.parent
SUPPORT = {path.stem: path for path in Path(__file__).parent.glob("*.py")}
WHOLE = (
    *("osiris.cli", "osiris.train", "osiris.api", "osiris.learner", "osiris.Learner", "osiris.training.run"),
    *("osiris.bench", "osiris.report", "make_notebook", "multiprocessing", "runpy", "subprocess"),
)
"""Modules and functions that train a run or start a process, or let the command line do so."""
DEAR = ("pool", "uninterrupted", "real_runs")
"""Fixtures that are made once for many tests, in seconds. Those that are made of them name them too."""


@cache
def used(path: Path) -> dict[str, set[str]]:
    """Function or constant at the top level of a test file -> every `module.name` that it uses, also through others."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    imports = dict(_imported(tree))
    direct, calls = dict[str, set[str]](), dict[str, set[str]]()
    for statement in tree.body:
        local = set(_local(statement)) if isinstance(statement, ast.FunctionDef) else set[str]()
        names = {(head, rest) for node in ast.walk(statement) for head, rest in _names(node) if head not in local}
        inside = imports | dict(_imported(statement))
        for defined in _defined(statement):
            direct[defined] = {inside[head] + rest for head, rest in names if head in inside}
            calls[defined] = {head for head, _ in names}
    for _ in direct:
        before = {name: len(found) for name, found in direct.items()}
        for name, found in direct.items():
            found |= {one for other in calls[name] & direct.keys() for one in direct[other]}
        if before == {name: len(found) for name, found in direct.items()}:
            break
    return direct


def _imported(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """(name in the file, what it stands for)"""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (
                (one.asname or one.name.split(".")[0], one.name if one.asname else one.name.split(".")[0])
                for one in node.names
            )
        elif isinstance(node, ast.ImportFrom):
            yield from ((one.asname or one.name, f"{node.module}.{one.name}") for one in node.names)


def _names(node: ast.AST) -> Iterator[tuple[str, str]]:
    """(name, the attributes asked of it): `osiris.train` is ("osiris", ".train")."""
    if isinstance(node, ast.Name):
        yield node.id, ""
    elif isinstance(node, ast.Attribute):
        rest = ""
        while isinstance(node, ast.Attribute):
            node, rest = node.value, f".{node.attr}{rest}"
        if isinstance(node, ast.Name):
            yield node.id, rest


def _local(function: ast.FunctionDef) -> Iterator[str]:
    """Names of its own. Its fixtures are known to pytest."""
    for node in ast.walk(function):
        if isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


def _defined(statement: ast.stmt) -> list[str]:
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        return [statement.name]
    if isinstance(statement, ast.Assign | ast.AnnAssign):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        return [node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)]
    return []


def reached(path: Path, functions: Iterable[str]) -> set[str]:
    """Every `module.name` that these functions of a test file use, also through tests/support."""
    own, found = used(path), set[str]()
    left = {name for function in functions for name in own.get(function, ())}
    while left:
        found |= left
        modules = [name.split(".") for name in left if name.split(".")[0] in SUPPORT]
        left = {one for module, *rest in modules for one in used(SUPPORT[module]).get(rest[0] if rest else "", ())}
        left = (left | ({"osiris.cli"} if any(module == "fork_server" for module, *_ in modules) else set())) - found
    return found


def is_whole(path: Path, function: str, fixtures: list[str]) -> bool:
    """Whether a case trains a run or starts a process."""
    names = reached(path, (function, *fixtures))
    return any(f"{name}.".startswith(f"{one}.") for name in names for one in WHOLE) or any(
        name in DEAR for name in fixtures
    )


def touching(changed: Path) -> list[Path]:
    """The test files that may notice a change of this file: those that name it, and those that import it or what
    imports it."""
    changed = changed.resolve()
    tests = sorted(TESTS.rglob("test_*.py"))
    if changed in tests:
        return [changed]
    if TESTS in changed.parents:  # a conftest, or a file of tests/support
        near = changed.parent if changed.name == "conftest.py" else TESTS
        return [path for path in tests if near in path.parents and (near != TESTS or changed.stem in path.read_text())]
    source = ROOT / "src"
    if source not in changed.parents:
        return [path for path in tests if changed.stem in path.read_text(encoding="utf-8")]
    module = ".".join(changed.relative_to(source).with_suffix("").parts).removesuffix(".__init__")
    near = _near(module)
    return [path for path in tests if _named_like(path, changed) or near & _modules(path)]


def _near(module: str) -> set[str]:
    """The module, what imports it, and the packages that hand these on."""
    graph = grimp.build_graph("osiris")
    found = {module, *graph.find_modules_that_directly_import(module)}
    found |= {name.rpartition(".")[0] for name in found if name.count(".") > 1} & {
        package for name in found for package in graph.find_modules_that_directly_import(name)
    }
    return found | ({"osiris.cli"} if module.startswith("osiris.commands") else set())  # imports them by name


def _named_like(test: Path, changed: Path) -> bool:
    """tests/training/test_run_killed.py is about training/run.py."""
    folder = changed.parent.relative_to(ROOT / "src" / "osiris")
    return test.parent == TESTS / folder and f"{test.stem}_".startswith(f"test_{changed.stem}_")


def _modules(test: Path) -> set[str]:
    """What a test file uses, and the modules above it: `osiris.files.write_text` and `osiris.files`."""
    parts = [name.split(".") for name in reached(test, used(test))]
    return {".".join(part[:end]) for part in parts for end in range(2, len(part) + 1)}


if __name__ == "__main__":
    print(*sorted({str(path.relative_to(ROOT)) for one in sys.argv[1:] for path in touching(Path(one))}))
