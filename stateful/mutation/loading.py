"""kvcore loaded anew in this process, one module from another text.

    load_as("kernels/jit.py", text)

What reads a function's source, as Triton does to interpret or compile a kernel, reads the other text too. That is how a
mutant reaches into a kernel.
"""

from __future__ import annotations

import linecache
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, ModuleType

from .sample import ROOT, import_name, path_of


class _FromText(SourceFileLoader):
    """Loads a module as if its file held another text; leaves no compiled file behind."""

    def __init__(self, name: str, path: str, text: str) -> None:
        super().__init__(name, path)
        self.text = text

    def get_code(self, fullname: str) -> CodeType:
        code: CodeType = compile(self.text, self.path, "exec", dont_inherit=True)
        return code

    def get_source(self, fullname: str) -> str:
        return self.text


class _OneModule:
    """Finds one module."""

    def __init__(self, name: str, path: str, text: str) -> None:
        self.name, self.path, self.text = name, path, text

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != self.name:
            return None
        spec = PathFinder.find_spec(name, path or [str(ROOT.parent)])
        assert spec is not None
        spec.loader = _FromText(name, self.path, self.text)
        return spec


def load_as(module: str | None, text: str) -> None:
    """From now on `import kvcore...` loads everything anew, and `module` from `text`."""
    for name in [name for name in sys.modules if name == "kvcore" or name.startswith("kvcore.")]:
        del sys.modules[name]
    if str(ROOT.parent) not in sys.path:
        sys.path.append(str(ROOT.parent))
    if module is not None:
        path = str(path_of(module)) if module.startswith("kvcore/") else str(ROOT / module)
        sys.meta_path.insert(0, _OneModule(import_name(module), path, text))
        # No time of change: linecache does not look at the file.
        linecache.cache[path] = len(text), None, text.splitlines(keepends=True), path
