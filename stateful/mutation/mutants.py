"""Mutants of a module: its text with one small thing wrong.

    for mutant in mutants_of("kvcore/freeing.py", text):
        mutant.id, mutant.before, mutant.after, mutant.apply(text)

A mutant replaces one piece of the text and keeps every line where it was, so that the rest of the text, and what is
said about its lines, stays the same. Left alone is what no run can tell apart: docstrings, annotations, decorators,
messages, `__repr__`, what only a type checker reads, and `num_warps`, which is a matter of speed.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

ARITHMETIC = {
    **{ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "//"), ast.FloorDiv: ("//", "*")},
    **{ast.Mod: ("%", "//"), ast.Div: ("/", "*"), ast.Pow: ("**", "*"), ast.LShift: ("<<", ">>")},
    **{ast.RShift: (">>", "<<"), ast.BitAnd: ("&", "|"), ast.BitOr: ("|", "&"), ast.BitXor: ("^", "&")},
}
COMPARISON = {
    **{ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"), ast.Gt: (">", ">="), ast.GtE: (">=", ">")},
    **{ast.Eq: ("==", "!="), ast.NotEq: ("!=", "=="), ast.In: ("in", "not in"), ast.NotIn: ("not in", "in")},
    **{ast.Is: ("is", "is not"), ast.IsNot: ("is not", "is")},
}
TWINS = {"min": "max", "max": "min", "any": "all", "all": "any"}
"""Functions with a counterpart. Of these the order of arguments is nothing to get wrong."""

NOT_CODE = (ast.JoinedStr, ast.Assert, ast.Import, ast.ImportFrom)


@dataclass(frozen=True)
class Mutant:
    """`text[begin:end]` of a module becomes `put`. before, after: the line where it happens, as it reads."""

    module: str
    line: int
    column: int
    kind: str
    begin: int
    end: int
    put: str
    before: str
    after: str

    @property
    def id(self) -> str:
        return f"{self.module}:{self.line}:{self.column}:{self.kind}"

    def apply(self, text: str) -> str:
        """The module's text with the mutant in it."""
        return text[: self.begin] + self.put + text[self.end :]


def mutants_of(module: str, text: str) -> list[Mutant]:
    """Every mutant of a module, in the order of the text."""
    found = {mutant.id: mutant for mutant in _Finder(module, text).all()}
    return sorted(found.values(), key=lambda mutant: (mutant.line, mutant.column, mutant.kind))


class _Finder:
    """Walks the tree of one module. A piece of text is named by its first and last offset."""

    def __init__(self, module: str, text: str) -> None:
        self.module, self.text = module, text
        self.lines = text.splitlines(keepends=True)
        self.starts = [0]
        for line in self.lines:
            self.starts.append(self.starts[-1] + len(line))

    def all(self) -> Iterator[Mutant]:
        yield from self.within(ast.parse(self.text), {})

    def within(self, node: ast.AST, stores: dict[str, int]) -> Iterator[Mutant]:
        """Mutants of a node and of what lies in it. stores: how often the function around it assigns a name."""
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            if node.name in ("__repr__", "__str__"):
                return
            stores = _stores(node)
        yield from self.of(node, stores)
        for child in _parts(node):
            yield from self.within(child, stores)

    def of(self, node: ast.AST, stores: dict[str, int]) -> Iterator[Mutant]:
        if isinstance(node, ast.BinOp):
            if not any(_is_string(side) for side in (node.left, node.right)):
                yield from self.operator("arithmetic", node.left, node.right, *ARITHMETIC.get(type(node.op), ("", "")))
        elif isinstance(node, ast.AugAssign):
            old, new = ARITHMETIC.get(type(node.op), ("", ""))
            yield from self.operator("arithmetic", node.target, node.value, old, new)
            yield from self.statement(node)
        elif isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            for left, op, right in zip(sides, node.ops, sides[1:], strict=False):
                yield from self.operator("comparison", left, right, *COMPARISON[type(op)])
        elif isinstance(node, ast.BoolOp):
            words = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
            for left, right in zip(node.values, node.values[1:], strict=False):
                yield from self.operator("boolean", left, right, *words)
        elif isinstance(node, ast.UnaryOp):
            if isinstance(node.op, (ast.Not, ast.USub)) and not isinstance(node.operand, ast.Constant):
                begin, end = self.span(node)[0], self.span(node.operand)[0]
                sign = "not" if isinstance(node.op, ast.Not) else "minus"
                rest = self.text[begin:end].removeprefix("not" if sign == "not" else "-").lstrip(" ")
                yield self.mutant(sign, begin, end, rest)
        elif isinstance(node, ast.Constant):
            yield from self.constant(node)
        elif isinstance(node, (ast.If, ast.While, ast.IfExp)):
            yield from self.condition(node.test, only_false=isinstance(node, ast.While))
        elif isinstance(node, ast.comprehension):
            for test in node.ifs:
                yield from self.condition(test, only_false=False)
        elif isinstance(node, ast.Return):
            if node.value is not None and not _is_none(node.value):
                yield self.mutant("return", *self.span(node.value), "None")
        elif isinstance(node, (ast.Raise, ast.Delete, ast.Break, ast.Continue)):
            yield from self.statement(node)
        elif isinstance(node, ast.Expr):
            if isinstance(node.value, ast.Call):
                yield from self.statement(node)
        elif isinstance(node, ast.Assign):
            # Without its only assignment a name would be missing: a mutant that any test kills proves nothing.
            if all(not isinstance(part, ast.Name) or stores.get(part.id, 0) > 1 for part in node.targets) and stores:
                yield from self.statement(node)
        elif isinstance(node, ast.Call):
            yield from self.call(node)

    def operator(self, kind: str, left: ast.expr, right: ast.expr, old: str, new: str) -> Iterator[Mutant]:
        """`old`, which stands between two operands, becomes `new`."""
        begin, end = self.span(left)[1], self.span(right)[0]
        place = self.text[begin:end].find(old) if old else -1
        if place >= 0:
            yield self.mutant(kind, begin + place, begin + place + len(old), new)

    def constant(self, node: ast.Constant) -> Iterator[Mutant]:
        begin, end = self.span(node)
        if isinstance(node.value, bool):
            yield self.mutant("boolean", begin, end, str(not node.value))
        elif isinstance(node.value, int):
            yield self.mutant("constant", begin, end, str(node.value + 1))
            if node.value == 1:
                yield self.mutant("constant-0", begin, end, "0")

    def condition(self, test: ast.expr, only_false: bool) -> Iterator[Mutant]:
        if not isinstance(test, ast.Constant):
            for forced in ("False",) if only_false else ("True", "False"):
                yield self.mutant(f"always-{forced.lower()}", *self.span(test), forced)

    def statement(self, node: ast.stmt) -> Iterator[Mutant]:
        begin, end = self.span(node)
        yield self.mutant("deleted", begin, end, "pass")

    def call(self, node: ast.Call) -> Iterator[Mutant]:
        """A keyword argument dropped, the first two arguments swapped, the counterpart called."""
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if name in TWINS:
            yield self.mutant("twin", *self.span(node.func), TWINS[name])
        elif len(node.args) > 1 and name != "isinstance" and not any(isinstance(a, ast.Starred) for a in node.args[:2]):
            (begin, middle), (again, end) = (self.span(argument) for argument in node.args[:2])
            first, between, second = self.text[begin:middle], self.text[middle:again], self.text[again:end]
            if first != second:
                yield self.mutant("swapped", begin, end, second + between + first)
        for keyword in node.keywords:
            if keyword.arg not in (None, "num_warps") and not _is_none(keyword.value):
                begin, end = self.span(keyword)
                comma = len(self.text[end:]) - len(self.text[end:].lstrip())
                # With the comma behind it; the last one leaves the comma before it, which may stay.
                end += comma + 1 if self.text[end + comma] == "," else 0
                yield self.mutant("dropped", begin, end, "")

    def mutant(self, kind: str, begin: int, end: int, put: str) -> Mutant:
        """The lines below have to stay where they are: newlines that go with the old text come back in the new one."""
        lost = self.text.count("\n", begin, end) - put.count("\n")
        if lost:
            put = put + "\n" * lost if kind in ("deleted", "dropped") else f"({put}{chr(10) * lost})"
        line = next(number for number, start in enumerate(self.starts) if start > begin)
        start = self.starts[line - 1]
        changed = self.text[start:begin] + put + self.text[end:]
        before, after = self.lines[line - 1].strip(), changed.split("\n", 1)[0].strip()
        return Mutant(self.module, line, begin - start + 1, kind, begin, end, put, before, after)

    def span(self, node: ast.expr | ast.stmt | ast.keyword) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self.offset(node.lineno, node.col_offset), self.offset(node.end_lineno, node.end_col_offset)

    def offset(self, line: int, utf8_column: int) -> int:
        return self.starts[line - 1] + len(self.lines[line - 1].encode()[:utf8_column].decode())


def _parts(node: ast.AST) -> Iterator[ast.AST]:
    """What lies in a node and is code that runs."""
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "decorator_list", "type_params", "bases"):
            continue
        for part in value if isinstance(value, list) else [value]:
            if not isinstance(part, ast.AST) or isinstance(part, NOT_CODE):
                continue
            if isinstance(part, ast.If) and isinstance(part.test, ast.Name) and part.test.id == "TYPE_CHECKING":
                continue
            if isinstance(part, ast.keyword) and part.arg == "num_warps":
                continue
            yield part


def _stores(function: ast.AST) -> dict[str, int]:
    """How often a function assigns each name. Its parameters count as assigned. Never empty: "" stands for it."""
    found = {"": 1}
    for node in ast.walk(function):
        name = node.arg if isinstance(node, ast.arg) else ""
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            name = node.id
        if name:
            found[name] = found.get(name, 0) + 1
    return found


def _is_string(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None
