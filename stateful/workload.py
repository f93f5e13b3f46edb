"""A real request trace, served through a pool that is too small for all of it, every clause checked on the way.

    result = run_workload(read_trace("mooncake_conversation.jsonl"), load_subject("kvcore"), WorkloadSettings())
    result.verdict, result.retractions, result.failure

What `check` draws at random on small pools, this does at real size and in real proportions: prompts of 100 k tokens
beside short ones, hours of allocation history in one free list. `scheduler` proposes, `touched` checks.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace

from .. import sizing
from ..hisparse import HiSparse
from ..kernels.jit import launches
from ..sizing import Speculation
from ..window import Window
from .configuration import Configuration
from .hisparse_scheduler import scheduler_for
from .operations import Operation
from .reach import Reach
from .replay import Failure, run
from .runner import Runner
from .scheduler import Served
from .subjects.protocol import Capabilities, Factory
from .touched import TouchedChecker
from .trace import Trace
from .verdicts import Broken

SPECULATION: dict[str, Speculation | None] = {
    "eagle": Speculation("eagle", steps=3, topk=1, draft_tokens=4),
    "dflash": Speculation("dflash", steps=1, topk=1, draft_tokens=8),
    "none": None,
}
"""By the name that the command line takes: a chain of three, a block of eight, plain decode."""


class DoesNotFit(ValueError):
    """The pool could not hold a request of the trace even alone; the message says which, and what it needs."""


@dataclass(frozen=True)
class WorkloadSettings:
    """How the trace is served. pages: None for `default_pages`. chunk: prompt tokens computed a step, at most. window:
    tokens that its layers look back, with a pool of `window_pages` for them, None for `default_window_pages`.
    buffer_size: tokens of a request's device buffer, None without HiSparse; device_pages, host_pages: None for
    `default_offload`."""

    device: str = "cpu"
    page_size: int = 64
    pages: int | None = None
    max_running: int = 64
    chunk: int = 8192
    speculation: Speculation | None = SPECULATION["eagle"]
    prefix_cache: str = "radix"
    eviction: str = "lru"
    window: int | None = None
    window_pages: int | None = None
    buffer_size: int | None = None
    device_pages: int | None = None
    host_pages: int | None = None
    seed: int = 0


@dataclass(kw_only=True)
class WorkloadResult(Served):
    """What became of the trace. missing: what had to be reached and was not, in sentences."""

    config: Configuration
    capabilities: Capabilities | None = None
    reach: Reach = field(default_factory=Reach)
    failure: Failure | None = None
    missing: list[str] = field(default_factory=list)

    @property
    def verdict(self) -> str:
        """holds, broken or not reached."""
        return "broken" if self.failure else "not reached" if self.missing else "holds"


def run_workload(
    trace: Trace,
    factory: Factory,
    settings: WorkloadSettings,
    *,
    progress: Callable[[int], None] = lambda finished: None,
) -> WorkloadResult:
    """Serve the trace to its end, or up to the operation that breaks a clause. `progress` hears of requests as they
    finish. Raises DoesNotFit before anything is served."""
    config = configuration_for(trace, settings)
    before = launches.copy()
    try:
        runner = Runner(config, factory, checker=TouchedChecker)
    except Broken as broken:
        return WorkloadResult(config=config, failure=Failure(config, (), broken))
    scheduler = scheduler_for(trace, runner, chunk=settings.chunk, seed=settings.seed)
    failure = None
    try:
        with rare_collections():
            scheduler.serve(progress)
            runner.finish()
    except Broken as broken:
        failure = shortened(Failure(config, tuple(scheduler.done), broken), factory)
    runner.reach.kernels.update(launches - before)
    result = WorkloadResult(
        **asdict(scheduler.served),
        config=config,
        capabilities=runner.subject.capabilities,
        reach=runner.reach,
        failure=failure,
    )
    if failure is None:
        result.missing += _missing(result, trace, settings)
    return result


@contextmanager
def rare_collections() -> Iterator[None]:
    """Python's collector looks for cycles less often: the model is a hundred thousand small objects without any, and
    walking through them time and again was a quarter of a run."""
    usual = gc.get_threshold()
    gc.set_threshold(200_000, 20, 100)
    try:
        yield
    finally:
        gc.set_threshold(*usual)


def _missing(result: WorkloadResult, trace: Trace, settings: WorkloadSettings) -> Iterator[str]:
    for name in ("prompt_tokens", "output_tokens"):
        got, there = getattr(result, name), getattr(trace, name)
        if got != there:
            yield f"{got} {name} got a slot, the trace has {there}"
    if not trace.whole or settings.pages is not None:
        return
    if not result.retractions:
        yield "nothing was retracted: the default pool never ran short; --pages gives it another size"
    if settings.window is not None and settings.window_pages is None and not result.short_of.get("window"):
        yield "no operation lacked window pages: the default window pool never ran short"
    if settings.buffer_size is not None and settings.device_pages is None and not result.short_of.get("device"):
        yield "no operation lacked device pages: the default device pool never ran short"
    if settings.prefix_cache != "none":
        if not result.evicted_pages:
            yield "nothing was evicted: the default pool held all that was ever cached"
        if trace.repeats and not result.hit_tokens:
            yield "nothing was hit: each prompt that repeats another came too late or too soon"


def default_pages(trace: Trace, settings: WorkloadSettings) -> int:
    """Room for the largest request, or for a tenth of `max_running` mean ones where that is more: never for all that
    could run, so that retraction happens. With HiSparse four times what the device needs for the largest, if more."""
    mean = (trace.prompt_tokens + trace.output_tokens) / len(trace)
    tokens = max(_room_for(trace.longest, settings), int(settings.max_running * mean / 10))
    pages = sizing.pages_for(tokens, settings.page_size)
    return pages if settings.buffer_size is None else max(pages, 4 * _device_pages_for(trace.longest, settings))


def default_offload(trace: Trace, settings: WorkloadSettings, pages: int) -> tuple[int, int]:
    """Device and host pages: a quarter of the logical ones, but what the largest request needs alone; and an eighth
    more than the logical ones, which back-ups can fill."""
    return max(pages // 4, _device_pages_for(trace.longest, settings)), pages + pages // 8


def default_window_pages(trace: Trace, settings: WorkloadSettings, pages: int) -> int:
    """Nine tenths of what the windows of mean requests need that fill the pool: so that now the one pool is short and
    now the other. What one request needs alone, where that is more."""
    assert settings.window is not None
    mean = (trace.prompt_tokens + trace.output_tokens) / len(trace)
    held = settings.window * (1 if settings.prefix_cache == "none" else 2)
    return max(_window_pages_for(trace.longest, settings), int(0.9 * pages * min(held / mean, 1)))


def configuration_for(trace: Trace, settings: WorkloadSettings) -> Configuration:
    """What the trace is served on; the core's checked mode is off: the suite has to find the fault."""
    pages = default_pages(trace, settings) if settings.pages is None else settings.pages
    needed = sizing.pages_for(_room_for(trace.longest, settings), settings.page_size)
    if needed > pages:
        number = 1 + max(range(len(trace)), key=lambda i: trace.requests[i].total_len)
        raise DoesNotFit(
            f"request {number} of the trace has {trace.longest} tokens and needs {needed} pages of "
            f"{settings.page_size} with its reserve; the pool has {pages}"
        )
    window = None
    if settings.window is not None:
        window_pages, least = settings.window_pages, _window_pages_for(trace.longest, settings)
        if window_pages is None:
            window_pages = default_window_pages(trace, settings, pages)
        if least > window_pages:
            raise DoesNotFit(
                f"a window of {settings.window} tokens and a chunk of {settings.chunk} need {least} window pages of "
                f"{settings.page_size}; the window pool has {window_pages}"
            )
        window = Window(settings.window, window_pages)
    hisparse = None if settings.buffer_size is None else _hisparse_for(trace, settings, pages)
    return Configuration(
        page_size=settings.page_size,
        num_pages=pages,
        max_requests=settings.max_running,
        context_len=trace.longest,
        device=settings.device,
        speculation=settings.speculation,
        prefix_cache=settings.prefix_cache,
        eviction=settings.eviction,
        window=window,
        hisparse=hisparse,
        checked=False,
    )


def _hisparse_for(trace: Trace, settings: WorkloadSettings, pages: int) -> HiSparse:
    assert settings.buffer_size is not None
    device, host = default_offload(trace, settings, pages)
    device, host = settings.device_pages or device, settings.host_pages or host
    least = {"device": _device_pages_for(trace.longest, settings)}
    least["host"] = sizing.pages_for(trace.longest, settings.page_size)
    for name, there in (("device", device), ("host", host)):
        if least[name] > there:
            raise DoesNotFit(
                f"the largest request has {trace.longest} tokens and needs {least[name]} {name} pages of "
                f"{settings.page_size}; the {name} pool has {there}"
            )
    return HiSparse(device, host, settings.buffer_size)


def _device_pages_for(tokens: int, settings: WorkloadSettings) -> int:
    """Device pages that a request of so many tokens needs at most when it runs alone: all that it has computed is there
    until it is admitted, when it needs its buffer."""
    assert settings.buffer_size is not None
    whole = sizing.pages_for(tokens, settings.page_size)
    return max(whole, HiSparse(1, 1, settings.buffer_size).buffer_pages(tokens, settings.page_size))


def _room_for(tokens: int, settings: WorkloadSettings) -> int:
    return tokens + sizing.row_headroom(settings.speculation, settings.page_size)


def _window_pages_for(tokens: int, settings: WorkloadSettings) -> int:
    """Window pages that a request of so many tokens needs at most when it runs alone: its chunk is there before what
    lies behind its window goes. Where prefixes are shared, the window before its last publication stays, too."""
    assert settings.window is not None
    size = settings.page_size
    reserve = sizing.pages_for(_room_for(0, settings), size)
    window, chunk = sizing.pages_for(settings.window, size), sizing.pages_for(settings.chunk, size) + 1
    behind = chunk if settings.prefix_cache == "none" else max(chunk, window + 1)
    return min(window + 1 + reserve + behind, sizing.pages_for(_room_for(tokens, settings), size))


def shortened(failure: Failure, factory: Factory) -> Failure:
    """The failure without the requests that were gone long before, and without rows for them, where something still
    breaks, best the same clause; with them otherwise. Hours of history are no start for delta debugging, and no file
    that a person edits."""
    config, operations, best = failure.config, failure.operations, failure
    for recent in (30, 300, 3_000, 30_000):
        there = {number for operation in operations[-recent:] for number in _members(operation)}
        fewer_rows = replace(config, max_requests=max(min(config.max_requests, len(there)), 1))
        found = run(fewer_rows, [o for operation in operations if (o := _only(operation, there))], factory)
        if found is not None and found.broken.clause == failure.broken.clause:
            return found
        best = found if found is not None and best is failure else best
    return best


def _members(operation: Operation) -> tuple[int, ...]:
    members: tuple[int, ...] = getattr(operation, "requests", None) or (operation.request,)  # type: ignore[attr-defined]
    return members


def _only(operation: Operation, there: set[int]) -> Operation | None:
    """The operation with those members alone; None if there are none of them."""
    members = _members(operation)
    kept = [i for i, number in enumerate(members) if number in there]
    if len(kept) == len(members):
        return operation
    lists = {f.name: getattr(operation, f.name) for f in fields(operation)}
    shorter = {name: tuple(v[i] for i in kept) for name, v in lists.items() if isinstance(v, tuple) and v}
    return replace(operation, **shorter) if kept else None
