"""The kernels' own promises: which process loads Triton, what a lane says that is not to be had, no undefined lane."""

from __future__ import annotations

import inspect
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from .. import kernels
from ..config import KVCacheConfig
from ..errors import BadArgument
from ..kernels.devices import is_device, tensor_device
from ..kernels.dispatch import OPERATIONS, kernels_for
from ..kernels.jit import Kernel, number_of_warps
from .masked_loads import masked_loads_without_other

ROOT = Path(kernels.__file__).absolute().parents[2]


def python(code: str, **environment: str) -> str:
    """What a new Python prints, from this checkout, in the lane that `environment` asks for."""
    import os

    inherited = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=inherited | environment,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


USE = """
import sys
import kvcore
assert not {"torch", "triton"} & set(sys.modules), "import kvcore alone"
manager = kvcore.KVCacheManager(kvcore.KVCacheConfig(4, 8, 2, 64, device=DEVICE))
req = kvcore.Req(1, range(99))
slots, batch = kvcore.alloc_for_extend(manager, [req], [6])
slot = kvcore.alloc_for_decode(manager, batch)
kvcore.release_kv_cache(manager, [req], checkpoint=False)
print(*slots.tolist(), *slot.tolist(), *manager.allocator.free_list.live.tolist()[:3], "triton" in sys.modules)
"""
GIVES = "4 5 6 7 8 9 10 1 2 3"

WITHOUT_TRITON = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "triton":
            raise ModuleNotFoundError("No module named 'triton'", name="triton")
sys.meta_path.insert(0, Absent())
"""


def refusal(device: str, before: str = "") -> str:
    """A program that prints how kernels_for refuses."""
    return before + (
        "from kvcore.kernels.dispatch import LaneError, kernels_for\n"
        f"try:\n    kernels_for({device!r})\nexcept LaneError as error:\n    print(error)"
    )


def test_the_cpu_lane_never_loads_triton() -> None:
    assert python(USE.replace("DEVICE", "'cpu'")) == f"{GIVES} False"


def test_the_cpu_lane_works_where_triton_is_absent() -> None:
    assert python(WITHOUT_TRITON + USE.replace("DEVICE", "'cpu'")) == f"{GIVES} False"


def test_the_kernels_give_the_same_in_the_interpreter() -> None:
    assert python(USE.replace("DEVICE", "'interpret'"), TRITON_INTERPRET="1") == f"{GIVES} True"


def test_every_kernel_agrees_in_the_interpreter() -> None:
    """What the interpret lane tests at length, shortly: so that the cpu lane's run notices a broken kernel, too."""
    code = """
from kvcore.properties import check_kernel
from kvcore.properties.cases import Case
from kvcore.properties.lanes import lane_function
from kvcore.kernels.dispatch import OPERATIONS
for op in OPERATIONS:
    check_kernel(op, lane_function(op, "interpret", Case(1, ((0, 1),))), "interpret", examples=10)
print("agree")
"""
    assert python(code, TRITON_INTERPRET="1") == "agree"


def test_a_lane_says_why_it_is_not_to_be_had() -> None:
    assert "Triton, which is not installed" in python(refusal("interpret", WITHOUT_TRITON))
    assert "set TRITON_INTERPRET=1 in the environment before" in python(refusal("interpret", "import triton\n"))
    assert "TRITON_INTERPRET is set" in python(refusal("cuda", ""), TRITON_INTERPRET="1")
    assert "finds 0 GPUs here" in python(refusal("cuda:3"), CUDA_VISIBLE_DEVICES="")


@pytest.mark.parametrize("device", ["gpu", "cuda:", "cuda:x", "CPU", "", None, 0])
def test_a_device_without_a_lane_is_refused(device: str) -> None:
    assert not is_device(device)
    with pytest.raises(ValueError, match="has to be 'cpu', 'interpret', 'cuda' or 'cuda:K'"):
        kernels_for(device)
    with pytest.raises(BadArgument) as caught:
        KVCacheConfig(4, 8, 2, 64, device=device)
    assert (caught.value.clause, caught.value.argument) == ("KV-15", "device")


@pytest.mark.parametrize(("device", "where"), [("cpu", "cpu"), ("interpret", "cpu"), ("cuda:1", "cuda:1")])
def test_where_the_tensors_of_a_lane_live(device: str, where: str) -> None:
    assert tensor_device(device) == where == KVCacheConfig(4, 8, 2, 64, device=device).tensor_device
    assert KVCacheConfig(4, 8, 2, 64, device=device).is_checked == (device == "cpu")


@pytest.mark.parametrize("op", OPERATIONS)
def test_an_operation_has_its_kernel_beside_its_reference(op: str) -> None:
    module = import_module(f"{kernels.__name__}.{op}")
    assert isinstance(getattr(module, f"{op}_kernel"), Kernel)
    assert callable(getattr(module, f"{op}_reference"))


def test_every_masked_load_says_what_the_other_lanes_read() -> None:
    names = sorted(path.stem for path in Path(kernels.__file__).parent.glob("*.py") if path.stem != "__init__")
    assert len(names) > len(OPERATIONS)
    # The source of what is loaded, which Triton reads, be it what stands in the file or not.
    sources = {name: inspect.getsource(import_module(f"{kernels.__name__}.{name}")) for name in names}
    assert {name: found for name, source in sources.items() if (found := masked_loads_without_other(source))} == {}


@pytest.mark.parametrize(
    ("load", "found"),
    [
        ("tl.load(p, mask=m)", True),
        ("tl.load(p, m)", True),
        ("triton.language.load(p, mask=m, cache_modifier='.cg')", True),
        ("tl.load(p, mask=m, other=0)", False),
        ("tl.load(p, m, 0)", False),
        ("tl.load(p)", False),
        ("json.load(f, mask=m)", False),
    ],
)
def test_the_search_for_such_loads_finds_them(load: str, found: bool) -> None:
    assert masked_loads_without_other(f"def kernel(p, m):\n    return 1 + {load}") == (
        [f"line 2: {load}"] if found else []
    )


def test_a_tile_has_a_power_of_two_of_warps_up_to_16() -> None:
    """Triton takes no other number; four elements a thread, so that a larger tile is no slower for each of them."""
    warps = {tile: number_of_warps(tile) for tile in (1, 64, 128, 256, 512, 1024, 2048, 4096, 8192)}
    assert warps == {1: 1, 64: 1, 128: 1, 256: 2, 512: 4, 1024: 8, 2048: 16, 4096: 16, 8192: 16}


def test_a_kernel_cannot_be_called() -> None:
    from ..kernels.get_last_loc import get_last_loc_kernel

    with pytest.raises(TypeError, match="a kernel is launched"):
        get_last_loc_kernel(1, 2)
