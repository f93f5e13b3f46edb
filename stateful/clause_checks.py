"""Where each clause is checked: read out of the suite's own source, so that the list cannot fall behind it.

    where_checked()["KV-7"]        # ("checkers.py StateChecker.unchanged", ...)

A function checks a clause if its source names it as the verdict: "KV-7", and nothing else, between quotes.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from ..contract import CONTRACT

HERE = Path(__file__).parent
NO_CHECKS = ("faults", "mutation", "commands.py", "configuration.py", "subjects/kvcore")
"""Parts of the suite that name clauses and check none: the gallery, what shows results, what is itself under test."""


@cache
def where_checked() -> dict[str, tuple[str, ...]]:
    """Each clause with the functions that may call it broken, as "file Class.function"."""
    found: dict[str, dict[str, None]] = {clause: {} for clause in CONTRACT}
    for path in _sources():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for function, clause in _named_in(tree, ""):
            found[clause][f"{path.name} {function}"] = None
    return {clause: tuple(functions) for clause, functions in found.items()}


def _sources() -> Iterator[Path]:
    yield HERE.parent / "auditing.py"
    for path in sorted(HERE.rglob("*.py")):
        inside = path.relative_to(HERE).as_posix()
        if not inside.startswith(NO_CHECKS) and not path.name.startswith("test_"):
            yield path


def _named_in(node: ast.AST, inside: str) -> Iterator[tuple[str, str]]:
    """The functions below a node with the clauses that they name."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.FunctionDef, ast.ClassDef)):
            yield from _named_in(child, f"{inside}.{child.name}".lstrip("."))
        elif isinstance(child, ast.Constant) and child.value in CONTRACT and inside:
            yield inside, child.value
        else:
            yield from _named_in(child, inside)
