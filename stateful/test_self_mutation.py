"""The mutation score: what a mutant is, that it takes effect, that a bad one is noticed and that none is not.

pytest kvcore/stateful/test_self_mutation.py
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from .mutation.mutants import mutants_of
from .mutation.sample import EQUIVALENT, ROOT, Stale, all_mutants, import_name, in_kernels, read_equivalents, sample

SOURCE = '''\
"""A docstring with 1 < 2."""

if TYPE_CHECKING:
    size = 1 + 1


@dataclass(frozen=True)
class Thing:
    def __repr__(self) -> str:
        return str(1 + 1)

    def move(self, pages: list[1], shift: int = 0) -> int:
        """Pages + 1."""
        total = len(pages) + shift
        self.count = total
        self.count += 3
        if not pages and total > 5:
            raise ValueError(f"{total + 1} pages")
        push(
            pages,
            shift,
            flag=True,
        )
        return min(total, -shift)
'''


def every_kind() -> dict[str, list[tuple[str, str]]]:
    found: dict[str, list[tuple[str, str]]] = {}
    for mutant in mutants_of("m.py", SOURCE):
        found.setdefault(mutant.kind, []).append((mutant.before, mutant.after))
    return found


def test_each_kind_of_mistake_is_made_where_it_can_be_made_and_nowhere_else() -> None:
    raising, condition = 'raise ValueError(f"{total + 1} pages")', "if not pages and total > 5:"
    last, signature = "return min(total, -shift)", "def move(self, pages: list[1], shift: int = 0) -> int:"
    assert every_kind() == {
        "constant": [
            (signature, signature.replace("= 0", "= 1")),
            ("self.count += 3", "self.count += 4"),
            (condition, "if not pages and total > 6:"),
        ],
        "arithmetic": [
            ("total = len(pages) + shift", "total = len(pages) - shift"),
            ("self.count += 3", "self.count -= 3"),
        ],
        "deleted": [("self.count = total", "pass"), ("self.count += 3", "pass"), (raising, "pass"), ("push(", "pass")],
        "always-true": [(condition, "if True:")],
        "always-false": [(condition, "if False:")],
        "not": [(condition, "if pages and total > 5:")],
        "boolean": [(condition, "if not pages or total > 5:"), ("flag=True,", "flag=False,")],
        "comparison": [(condition, "if not pages and total >= 5:")],
        "swapped": [("pages,", "shift,")],
        "dropped": [("flag=True,", "")],
        "return": [(last, "return None")],
        "twin": [(last, "return max(total, -shift)")],
        "minus": [(last, "return min(total, shift)")],
    }


def test_a_mutant_leaves_every_line_where_it_was_and_can_be_compiled() -> None:
    for module, text in [("m.py", SOURCE), *((f"kernels/{p.name}", p.read_text()) for p in ROOT.glob("kernels/*.py"))]:
        for mutant in mutants_of(module, text):
            changed = mutant.apply(text)
            assert changed.count("\n") == text.count("\n"), mutant.id
            assert changed.split("\n")[: mutant.line - 1] == text.split("\n")[: mutant.line - 1], mutant.id
            compile(changed, mutant.id, "exec")


def test_a_sample_is_seeded_and_has_every_module_in_it() -> None:
    mutants = all_mutants()
    chosen = sample(mutants, 400, seed=0)
    assert len(chosen) == len(set(chosen)) == 400
    assert sum(map(in_kernels, chosen)) >= 80
    assert {mutant.module for mutant in chosen} == {mutant.module for mutant in mutants}
    assert chosen == sample(mutants, 400, seed=0)
    assert chosen != sample(mutants, 400, seed=1)
    share, whole = (Counter(mutant.module for mutant in some)["kvcore/auditing.py"] for some in (chosen, mutants))
    assert share / 400 == pytest.approx(whole / len(mutants), rel=0.25)
    assert len(sample(mutants, 5, seed=0)) == 5
    assert len(sample(mutants, 10**6, seed=0)) == len(mutants)


def test_ids_are_of_one_mutant_each_and_modules_are_found() -> None:
    mutants = all_mutants()
    assert len({mutant.id for mutant in mutants}) == len(mutants)
    assert import_name("kernels/jit.py") == "kvcore.kernels.jit"
    assert import_name("kvcore/__init__.py") == "kvcore"
    assert import_name("kvcore/prefix_cache/radix.py") == "kvcore.prefix_cache.radix"


def test_the_equivalents_that_are_listed_exist() -> None:
    assert all(read_equivalents(EQUIVALENT, all_mutants()).values())


@pytest.mark.parametrize(
    ("lines", "wrong"),
    [
        ("m.py, comparison: no reason\n- if a < b:\n+ if a <= b:", "no such mutant"),
        ("m.py, minus: \n- return min(total, -shift)\n+ return min(total, shift)", "gives no reason"),
        ("m.py, minus: it is 0\n- return min(total, -shift)", "is not followed by"),
    ],
)
def test_a_stale_file_of_equivalents_is_refused(lines: str, wrong: str, tmp_path: Path) -> None:
    mutants, file = mutants_of("m.py", SOURCE), tmp_path / "equivalent.txt"
    file.write_text("# why\n\nm.py, minus: it is 0\n- return min(total, -shift)\n+ return min(total, shift)\n")
    assert list(read_equivalents(file, mutants).values()) == ["it is 0"]
    file.write_text(f"{file.read_text()}\n{lines}\n")
    with pytest.raises(Stale, match=wrong):
        read_equivalents(file, mutants)


IN_A_KERNEL = """
import numpy as np, torch, inspect
from kvcore.stateful.mutation.loading import load_as
from kvcore.stateful.mutation.mutants import mutants_of
from kvcore.stateful.mutation.sample import path_of

def computed():
    from kvcore.kernels.dispatch import kernels_for
    free = torch.arange(1, 9)
    extended = kernels_for("interpret").alloc_extend(np.array([0]), np.array([6]), torch.tensor([-1]), free, 0, 4)
    return extended.tolist()

text = path_of("kernels/alloc_extend.py").read_text()
load_as(None, "")
print(computed())
for mutant in mutants_of("kernels/alloc_extend.py", text):
    if mutant.before.startswith("slot = tl.where(") and mutant.after.endswith("PAGE_SIZE - position % PAGE_SIZE)"):
        load_as(mutant.module, mutant.apply(text))
        print(computed())
"""


def test_a_mutant_inside_a_kernel_changes_what_the_interpreter_computes(tmp_path: Path) -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT.parent)}
    done = subprocess.run(
        [sys.executable, "-c", IN_A_KERNEL], env=environment, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.split("\n") == ["[4, 5, 6, 7, 8, 9]", "[4, 3, 2, 1, 8, 7]", ""]


SOME_CHECKS = """
import sys
from kvcore.stateful.mutation import checks, children
from kvcore.stateful.mutation.sample import all_mutants

whole = checks.checks_of
children.checks_of = lambda *which: [check for check in whole(*which) if check[0] in ("import", "soak engine 0")]
mutants = [m for m in all_mutants() if m.before == "lens = end - start" and m.kind == "arithmetic"][:1]
texts = [(m, m.apply(children.path_of(m.module).read_text()), (0, 1)) for m in mutants]
children.load_libraries("cpu")
for _, result in children.watch("cpu", [(None, "", (0, 1)), *texts], 2, 60, {}):
    print("no mutant" if result.mutant is None else "mutant", result.verdict)
"""


def test_a_bad_mutant_is_killed_and_the_code_as_it_is_survives(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT.parent)}
    done = subprocess.run(
        [sys.executable, "-c", SOME_CHECKS], env=environment, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert sorted(done.stdout.splitlines()) == ["mutant killed", "no mutant survived"]
