"""What a person meets who installs kvcore: the right files, each module once, no import unasked.

    pytest kvcore/stateful -m packaging

The built wheel and sdist are looked into, and every import and every pytest run is a process of its own,
started the way a person starts it. Not covered: pip's choice of dependencies, which tox and CI go through.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.packaging

ROOT = Path(__file__).absolute().parents[2]  # not resolve(): this file is reached through the link in kvcore/
ROOMS = ("kernels", "properties", "stateful")
SUITE = ("properties", "stateful")

Collect = Callable[..., set[str]]


def python(*arguments: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """A new interpreter without this run's own pytest variables; `stdout` has output and errors."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "TRITON_"))}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env=kept | variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
        check=False,
    )


def succeed(*arguments: str, cwd: Path, **variables: str) -> str:
    done = python(*arguments, cwd=cwd, **variables)
    assert done.returncode == 0, f"{' '.join(arguments)}: status {done.returncode}\n{done.stdout}"
    return done.stdout


def sources(pattern: str) -> set[str]:
    """The files of the package in the checkout, as the wheel should name them."""
    found = {path.relative_to(ROOT): path for path in (ROOT / "kvcore").glob(f"**/{pattern}")}
    for room in ROOMS:  # glob does not follow links on every Python version
        found |= {Path("kvcore") / path.relative_to(ROOT): path for path in (ROOT / room).glob(f"**/{pattern}")}
    # a script run without -B leaves a folder of byte code behind
    return {name.as_posix() for name, path in found.items() if path.is_file()}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist and the wheel made from it, built from a copy: builds leave files behind."""
    folder = tmp_path_factory.mktemp("built")
    copy = folder / "checkout"
    junk = shutil.ignore_patterns("__pycache__", ".*", "*.egg-info", "build", "dist", "venv")
    shutil.copytree(ROOT, copy, symlinks=True, ignore=junk)
    succeed("-c", f"import setuptools.build_meta as b; b.build_sdist({str(folder)!r})", cwd=copy)
    sdist = one_file(folder, "*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder / "unpacked")
    unpacked = folder / "unpacked" / sdist.name.removesuffix(".tar.gz")
    succeed("-c", f"import setuptools.build_meta as b; b.build_wheel({str(folder)!r})", cwd=unpacked)
    return folder


def one_file(folder: Path, pattern: str) -> Path:
    (found,) = folder.glob(pattern)
    return found


def test_the_wheel_holds_every_module_once_and_no_test_of_the_project_itself(built: Path) -> None:
    with zipfile.ZipFile(one_file(built, "*.whl")) as wheel:
        names = wheel.namelist()
    held = {name for name in names if ".dist-info/" not in name}
    expected = sources("*.py") | sources("peers/*/*") | {"kvcore/py.typed"}
    assert held == {name for name in expected if "/test_self_" not in name and "/mutation/" not in name}
    assert len(names) == len(set(names))


def test_the_sdist_holds_the_project_s_own_tests_and_each_file_once(built: Path) -> None:
    with tarfile.open(one_file(built, "*.tar.gz")) as sdist:
        members = {member.name.split("/", 1)[-1]: member for member in sdist.getmembers()}
    assert sources("*.py") | {"kvcore/py.typed", "conftest.py", "tox.ini", "constraints.txt"} <= members.keys()
    assert not [name for name in members if name.split("/")[0] in ROOMS]
    assert not [name for name, member in members.items() if member.issym() or member.islnk()]


@pytest.mark.parametrize(
    ("module", "unwanted"),
    [
        ("kvcore", {"torch", "triton", "hypothesis", "pytest", "rich"}),
        ("kvcore.stateful.plugin", {"torch", "triton", "hypothesis", "rich", "numpy"}),
    ],
)
def test_an_import_alone_brings_nothing_heavy(module: str, unwanted: set[str], tmp_path: Path) -> None:
    loaded = succeed("-c", f"import sys, {module}; print(*sys.modules)", cwd=tmp_path).split()
    assert unwanted.isdisjoint(loaded)


def test_the_plugin_brings_nothing_heavy_into_a_stranger_s_pytest_run(tmp_path: Path) -> None:
    (tmp_path / "test_theirs.py").write_text(
        "import sys\n"
        "def test_what_is_loaded():\n"
        "    assert 'kvcore.stateful.plugin' in sys.modules\n"
        "    assert {'torch', 'triton', 'kvcore.allocation'}.isdisjoint(sys.modules)\n"
    )
    succeed("-m", "pytest", "-q", cwd=tmp_path)


@pytest.mark.parametrize("again", ["kvcore", "kvcore.stateful.plugin"])
def test_naming_the_plugin_with_dash_p_does_not_load_it_twice(again: str, tmp_path: Path) -> None:
    (tmp_path / "test_theirs.py").write_text("def test_it(): pass\n")
    output = succeed("-m", "pytest", "-p", again, "--kv-profile", "ci", cwd=tmp_path)
    assert output.count("kvcore: subject kvcore, device cpu, profile ci") == 1


@pytest.fixture
def collect(tmp_path: Path) -> Collect:
    """Runs pytest's collection and returns the modules it found, by the names they were imported under."""
    (tmp_path / "probe").mkdir()
    (tmp_path / "probe" / "write_what_is_collected.py").write_text(
        "def pytest_collection_finish(session):\n"
        "    with open(__file__ + '.txt', 'w') as out:\n"
        "        for item in session.items:\n"
        "            print(item.module.__name__, item.path.name, item.nodeid.partition('::')[2], file=out)\n"
    )

    def run(*arguments: str, cwd: Path = tmp_path, site: str = "") -> set[str]:
        # The interpreter's lane collects everything; the cpu lane leaves out what speaks of kernels only.
        lane = ("--kv-device", "interpret")
        quiet = ("-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *lane)
        path = os.pathsep.join(filter(None, [site, str(tmp_path / "probe")]))
        done = python(*quiet, "-p", "write_what_is_collected", *arguments, cwd=cwd, PYTHONPATH=path)
        assert done.returncode in (0, 5), done.stdout  # 5: nothing to collect
        lines = (tmp_path / "probe" / "write_what_is_collected.py.txt").read_text().splitlines()
        assert len(lines) == len(set(lines)), "a test is collected twice"
        return {line.split()[0] for line in lines}

    return run


def modules(pattern: str) -> set[str]:
    """The suite's modules in the checkout."""
    names = {name for name in sources(pattern) if name.split("/")[1] in SUITE}
    return {name.removesuffix(".py").replace("/", ".") for name in names}


def test_pyargs_collects_each_test_of_an_editable_install_once(collect: Collect) -> None:
    assert collect("--pyargs", "kvcore.stateful", "kvcore.properties") == modules("test_*.py")


def test_pyargs_collects_each_shipped_test_of_an_installed_wheel_once(
    collect: Collect, built: Path, tmp_path: Path
) -> None:
    site = str(tmp_path / "site")
    install = ("-m", "pip", "install", "-q", "--no-index", "--no-deps", "--target", site)
    succeed(*install, str(one_file(built, "*.whl")), cwd=tmp_path)
    shipped = modules("test_*.py") - modules("test_self_*.py")
    assert collect("--pyargs", "kvcore.stateful", "kvcore.properties", site=site) == shipped


def test_bare_pytest_and_a_file_by_its_path_collect_each_test_once(collect: Collect) -> None:
    assert collect(cwd=ROOT) == modules("test_*.py")
    assert collect(".", cwd=ROOT) == modules("test_*.py")
    this = "kvcore/stateful/test_self_packaging.py"
    assert collect(this, cwd=ROOT) == {"kvcore.stateful.test_self_packaging"}


@pytest.mark.skipif(not (ROOT / "stateful").exists(), reason="an unpacked sdist has the rooms in kvcore/ only")
@pytest.mark.parametrize(
    ("folder", "arguments", "instead"),
    [
        ("", ["stateful"], "pytest kvcore/stateful`"),
        ("", ["properties/", "-n", "2"], "pytest kvcore/properties`"),
        ("", ["kernels"], "pytest kvcore/kernels`"),
        (
            "",
            [f"{ROOT}/stateful/test_self_packaging.py::test_x"],
            "kvcore/stateful/test_self_packaging.py::test_x`",
        ),
        ("kvcore", ["../stateful"], "pytest kvcore/stateful`"),
        ("stateful", [], "pytest kvcore/stateful`"),
    ],
)
def test_a_room_by_its_own_path_is_refused(folder: str, arguments: list[str], instead: str) -> None:
    done = python("-m", "pytest", "-p", "no:cacheprovider", *arguments, cwd=ROOT / folder)
    assert done.returncode == 4, done.stdout
    (line,) = done.stdout.split("\n\n")[0].splitlines()
    assert instead in line


def refused(*arguments: str, cwd: Path, **variables: str) -> tuple[int, str]:
    """Status and the one line that a refused run prints."""
    (cwd / "test_theirs.py").write_text("def test_it(): pass\n")
    done = python("-m", "pytest", *arguments, cwd=cwd, **variables)
    (line,) = done.stdout.strip().splitlines()
    return done.returncode, line


def test_a_subject_that_does_not_exist_is_named_in_one_line(tmp_path: Path) -> None:
    status, line = refused("--kv-subject", "nowhere.to.be:found", cwd=tmp_path)
    assert (status, "nowhere" in line) == (4, True), line


def test_cuda_without_a_gpu_ends_with_status_2(tmp_path: Path) -> None:
    torch_that_sees(0, tmp_path)
    status, line = refused("--kv-device", "cuda", cwd=tmp_path, PYTHONPATH=str(tmp_path))
    assert (status, line) == (2, "Exit: --kv-device cuda: torch 0.stub finds no GPU here")


def test_interpret_after_triton_s_import_is_refused(tmp_path: Path) -> None:
    (tmp_path / "triton.py").write_text("")
    (tmp_path / "conftest.py").write_text("import triton\n")
    status, line = refused("--kv-device", "interpret", cwd=tmp_path)
    assert (status, "TRITON_INTERPRET=1" in line) == (4, True), line


def test_each_worker_takes_a_gpu_in_turn(tmp_path: Path) -> None:
    torch_that_sees(2, tmp_path)
    (tmp_path / "test_theirs.py").write_text(
        "from kvcore.stateful import options\n"
        "def test_device(worker_id):\n"
        "    taken = {'gw0': 'cuda:0', 'gw1': 'cuda:1', 'gw2': 'cuda:0'}\n"
        "    assert options.current.device == taken[worker_id]\n"
    )
    run = ("-m", "pytest", "-n", "3", "--dist", "each", "--kv-device", "cuda")
    assert "3 passed" in succeed(*run, cwd=tmp_path, PYTHONPATH=str(tmp_path))


def torch_that_sees(gpus: int, folder: Path) -> None:
    """Stands in for torch, so that the answer does not depend on this machine."""
    (folder / "torch.py").write_text(
        f"__version__ = '0.stub'\nclass cuda:\n    device_count = staticmethod(lambda: {gpus})\n"
    )
