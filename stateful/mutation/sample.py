"""Which mutants a run looks at, and which of them are known to change nothing.

    chosen = sample(all_mutants(), 400, seed=0)
    known = read_equivalents(EQUIVALENT, all_mutants())     # {mutant id: reason}

The file of equivalents has three lines for each, and blank lines between them:

    kernels/alloc_extend.py, constant: a tile is a matter of speed
    - tile: int = 512,
    + tile: int = 513,
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random

from .mutants import Mutant, mutants_of

ROOT = Path(__file__).absolute().parents[2]  # not resolve(): this file is reached through the link in kvcore/
"""The folder of the package; modules are named as from the checkout's root: kvcore/freeing.py, kernels/jit.py."""

EQUIVALENT = Path(__file__).with_name("equivalent.txt")
KERNEL_SHARE = 0.2
"""At least so much of a sample is in kernels/."""


class Stale(ValueError):
    """The file of equivalents says something that is not so."""


def path_of(module: str) -> Path:
    return ROOT.parent / module if module.startswith("kvcore/") else ROOT / module


def import_name(module: str) -> str:
    """kernels/jit.py -> kvcore.kernels.jit; kvcore/__init__.py -> kvcore."""
    parts = path_of(module).relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def all_mutants() -> list[Mutant]:
    """Every mutant of the core and of its kernels."""
    core = [f"kvcore/{path.relative_to(ROOT).as_posix()}" for path in ROOT.glob("*.py")]
    for folder in ("allocators", "prefix_cache"):
        core += [f"kvcore/{folder}/{path.name}" for path in (ROOT / folder).glob("*.py")]
    kernels = [f"kernels/{path.name}" for path in (ROOT / "kernels").glob("*.py")]
    return [mutant for name in sorted(core + kernels) for mutant in mutants_of(name, path_of(name).read_text())]


def in_kernels(mutant: Mutant) -> bool:
    return mutant.module.startswith("kernels/")


def sample(mutants: Sequence[Mutant], size: int, seed: int) -> list[Mutant]:
    """`size` of them (all, if they are fewer), from every module in proportion to its mutants and at least one."""
    kernels = [mutant for mutant in mutants if in_kernels(mutant)]
    core = [mutant for mutant in mutants if not in_kernels(mutant)]
    size = min(size, len(mutants))
    from_kernels = max(round(size * len(kernels) / len(mutants)), int(size * KERNEL_SHARE))
    from_kernels = min(max(from_kernels, size - len(core)), len(kernels))
    return _stratified(core, size - from_kernels, seed) + _stratified(kernels, from_kernels, seed)


def _stratified(mutants: Sequence[Mutant], size: int, seed: int) -> list[Mutant]:
    by_module: dict[str, list[Mutant]] = {}
    for mutant in mutants:
        by_module.setdefault(mutant.module, []).append(mutant)
    if size < len(by_module):  # Too few for one of each.
        return sorted(Random(seed).sample(list(mutants), size), key=mutants.index)
    shares = {name: max(size * len(found) / len(mutants), 1) for name, found in by_module.items()}
    counts = {name: int(share) for name, share in shares.items()}
    # What rounding has left over goes to the largest remainders; what the ones of small modules cost, to the largest.
    while (left := size - sum(counts.values())) != 0:
        step = 1 if left > 0 else -1
        room = [name for name in counts if (counts[name] < len(by_module[name]) if left > 0 else counts[name] > 1)]
        counts[max(room, key=lambda name: (step * (shares[name] - counts[name]), name))] += step
    drawn = []
    for name, found in by_module.items():
        chosen = Random(f"{seed} {name}").sample(range(len(found)), counts[name])
        drawn += [found[index] for index in sorted(chosen)]
    return drawn


def read_equivalents(path: Path, mutants: Sequence[Mutant]) -> dict[str, str]:
    """Ids of the mutants that the file calls equivalent, and why. Stale if it names one that does not exist."""
    by_text: dict[tuple[str, str, str, str], list[str]] = {}
    for mutant in mutants:
        by_text.setdefault((mutant.module, mutant.kind, mutant.before, mutant.after), []).append(mutant.id)
    found: dict[str, str] = {}
    for paragraph in filter(None, (part.strip("\n") for part in path.read_text().split("\n\n"))):
        head, *code = [line for line in paragraph.splitlines() if not line.startswith("#")] or [""]
        if not head:
            continue
        where, _, reason = head.partition(": ")
        module, _, kind = where.partition(", ")
        if len(code) != 2 or not reason.strip() or code[0][:2] != "- " or not code[1].startswith("+"):
            raise Stale(f"{path.name}: {head!r} is not followed by '- line' and '+ line', or gives no reason")
        ids = by_text.get((module, kind, code[0][2:].strip(), code[1][1:].strip()))
        if ids is None:
            raise Stale(f"{path.name}: no such mutant: {module}, {kind}: {code[0][2:]} -> {code[1][2:]}")
        found.update(dict.fromkeys(ids, reason.strip()))
    return found
