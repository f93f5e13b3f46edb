"""The workload with a window pool: both pools run short, the windows move on, and a broken window is found."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from ..prefix_cache.radix import RadixCache
from .admission import Request, Room
from .cli import main
from .ledger import Ledger
from .operations import Extend, Release, Retract
from .replay import run
from .runner import Runner
from .subjects.kvcore import KvcoreEngine
from .test_self_workload_cache import Fault, conversations
from .test_self_workload_faults import serve_to_the_end
from .touched import TouchedChecker
from .trace import Trace, TraceRequest, mooncake_text
from .verdicts import Broken
from .workload import SPECULATION, DoesNotFit, WorkloadSettings, configuration_for, run_workload

WINDOW = WorkloadSettings(page_size=16, max_running=8, chunk=256, window=128)


def mixed(count: int, seed: int, output: int) -> Trace:
    """Conversations, and beside each a short prompt with a longer output: long ones fill the full pool, many short ones
    the other."""
    random, talks = Random(seed), conversations(count, seed).requests
    short = [TraceRequest(random.randrange(1, 100), random.randrange(1, output)) for _ in range(count)]
    return Trace(tuple(one for pair in zip(talks, short, strict=True) for one in pair))


@pytest.mark.parametrize(("prefix_cache", "spec", "count"), [("radix", "eagle", 60), ("none", "dflash", 100)])
def test_every_token_gets_a_slot_and_both_pools_run_short(prefix_cache: str, spec: str, count: int) -> None:
    trace = mixed(count, seed=3, output=200 if count == 60 else 300)
    settings = replace(
        WINDOW, pages=200, window_pages=50, speculation=SPECULATION[spec], prefix_cache=prefix_cache,
        max_running=12 if count == 60 else 16,
    )  # fmt: skip
    result = run_workload(trace, KvcoreEngine, settings)
    assert (result.verdict, result.failure, result.missing) == ("holds", None, [])
    assert (result.prompt_tokens, result.output_tokens) == (trace.prompt_tokens, trace.output_tokens)
    assert min(result.short_of["full"], result.short_of["window"]) > 0
    assert result.retractions == result.reach.states["resumed"] > 0
    assert result.window_given_up > 0
    assert result.peak_window_pages == 50
    for clause in ("KV-1", "KV-3", "KV-5", "KV-6", "KV-7", "KV-8", "KV-10"):
        assert result.reach.checks[clause], clause
    if prefix_cache == "radix":
        assert min(result.hit_tokens, result.evicted_pages, result.window_evicted) > 0
    else:
        assert (result.hit_tokens, result.evicted_pages, result.window_evicted) == (0, 0, 0)


@pytest.mark.parametrize(("chunk", "page_size"), [(16, 16), (256, 16), (2000, 16), (100, 1)])
@pytest.mark.parametrize("prefix_cache", ["radix", "none"])
@pytest.mark.parametrize("spec", ["eagle", "none"])
def test_the_least_window_pool_serves_everything(spec: str, prefix_cache: str, page_size: int, chunk: int) -> None:
    """What is said to be enough is: one request after the other comes through."""
    trace = conversations(12, seed=chunk + page_size)
    settings = replace(
        WINDOW, page_size=page_size, chunk=chunk, speculation=SPECULATION[spec], prefix_cache=prefix_cache,
        pages=6000 // page_size, window_pages=1,
    )  # fmt: skip
    with pytest.raises(DoesNotFit) as refused:
        configuration_for(trace, settings)
    least = int(str(refused.value).split(" need ")[1].split()[0])
    result = run_workload(trace, KvcoreEngine, replace(settings, window_pages=least))
    assert (result.verdict, result.requests) == ("holds", 12)
    with pytest.raises(DoesNotFit, match=f"need {least} window pages of {page_size}; the window pool has {least - 1}$"):
        run_workload(trace, KvcoreEngine, replace(settings, window_pages=least - 1))


def test_a_default_window_pool_that_is_never_short_is_told() -> None:
    trace = Trace((TraceRequest(100, 10), TraceRequest(90, 5)))
    missing = run_workload(trace, KvcoreEngine, WINDOW).missing
    assert "no operation lacked window pages: the default window pool never ran short" in missing
    assert run_workload(trace, KvcoreEngine, replace(WINDOW, pages=100)).missing == []


def test_admission_looks_at_both_pools() -> None:
    """Room in one of them is not enough."""

    def fits(pages: int, window_pages: int) -> list[bool]:
        trace = Trace((TraceRequest(600, 1),))
        settings = replace(WINDOW, pages=pages, window_pages=window_pages, prefix_cache="none", speculation=None)
        room = Room(Ledger(configuration_for(trace, settings)), reserve=1, chunk=256)
        return [room.promise(Request(number, 600, 1)) for number in range(1, 4)]

    assert fits(76, 76) == [True, True, False]  # 38 pages each
    # A window, its edge and a step are 10 pages, 16 more while a chunk is there.
    assert fits(1000, 36) == [True, True, False]
    assert fits(1000, 46) == [True, True, True]


def test_a_hit_ends_where_a_whole_window_is_live() -> None:
    """Two prompts share 512 tokens; between them others take the window pages of the first."""
    config = configuration_for(conversations(8, seed=1), replace(WINDOW, pages=400, window_pages=60, speculation=None))
    runner = Runner(config, KvcoreEngine, checker=TouchedChecker)
    shared = ((512, -1),)
    for number in (1, 2):
        runner.step(Extend((number,), (600,), prompts=(shared,)))
        assert runner.ledger.live[number].protected == (512 if number == 2 else 0)
        runner.step(Release((number,), True))
    others = (10, 11, 12)
    for number in others:
        runner.step(Extend((number,), (256,)))
    runner.step(Retract(others))
    assert runner.ledger.cache.window_evicted > 0
    runner.step(Extend((3,), (600,), prompts=(shared,)))
    assert runner.ledger.live[3].protected == 0
    runner.finish()


# A window that is broken, well into it.


class LosesAWindowPage(Fault):
    def release(self, requests: Any, checkpoint: bool, tokens: Any) -> None:
        super().release(requests, checkpoint, tokens)
        if self.now():
            self.manager.window_allocator.free_list.advance(1)  # type: ignore[union-attr]


class KeepsTheWindowsOfTheRetracted(Fault):
    """The full pages come back, their window pages do not."""

    def retract(self, requests: Any, backup: bool) -> None:
        window = self.manager.window_allocator
        assert window is not None
        before = window.free_list.count
        super().retract(requests, backup)
        window.free_list.advance(window.free_list.count - before)


class LeavesTheMapStale(Fault):
    """The window page is another's, and the map still has it."""

    def release(self, requests: Any, checkpoint: bool, tokens: Any) -> None:
        before = self.manager.window_map.clone()
        super().release(requests, checkpoint, tokens)
        gone = (before > 0) & (self.manager.window_map == 0)
        if self.calls > 19 or self.now():
            self.manager.window_map[gone] = before[gone]


class MapsNothing(Fault):
    def extend(self, requests: Any, seq_lens: Any, tokens: Any, salts: Any) -> Any:
        slots = super().extend(requests, seq_lens, tokens, salts)
        if self.now():
            self.manager.window_map[slots[-1] // self.config.page_size] = 0
        return slots


class MapsTwoPagesToOne(Fault):
    def extend(self, requests: Any, seq_lens: Any, tokens: Any, salts: Any) -> Any:
        slots = super().extend(requests, seq_lens, tokens, salts)
        if self.calls > 19 or self.now():
            pages = slots // self.config.page_size
            self.manager.window_map[pages[-1]] = self.manager.window_map[pages[0]]
        return slots


class HitsADeadWindow(Fault):
    """A hit as if every cached page had its window."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        cache: Any = self.manager.tree_cache
        cache.peek = lambda key, extra_key=None: RadixCache.peek(cache, key, extra_key)


class GivesUpAPageTooMany(Fault):
    """The window's first page goes while it is still looked at."""

    def __init__(self, config: Any) -> None:
        super().__init__(replace(config, window=replace(config.window, size=config.window.size - config.page_size)))


class NeverGivesUp(Fault):
    def __init__(self, config: Any) -> None:
        super().__init__(replace(config, window=replace(config.window, interval=1 << 20)))


@pytest.mark.parametrize(
    ("fault", "clauses"),
    [
        (LosesAWindowPage, ["KV-8"]),
        (KeepsTheWindowsOfTheRetracted, ["KV-8"]),
        (LeavesTheMapStale, ["KV-10"]),
        (MapsNothing, ["KV-10"]),
        (MapsTwoPagesToOne, ["KV-1", "KV-10"]),
        (HitsADeadWindow, ["KV-9"]),
        (GivesUpAPageTooMany, ["KV-5", "KV-8", "KV-9"]),
        (NeverGivesUp, ["KV-5", "KV-6", "KV-8"]),
    ],
)
def test_a_broken_window_is_found(fault: type[Fault], clauses: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvcore.stateful.touched.RECOUNT_EVERY", 200)
    trace, settings = mixed(60, seed=3, output=200), replace(WINDOW, pages=200, window_pages=50, max_running=12)
    runner = Runner(configuration_for(trace, settings), fault, checker=TouchedChecker)
    with pytest.raises(Broken) as found:
        serve_to_the_end(trace, runner)
    assert found.value.clause in clauses, found.value
    failure = run_workload(trace, fault, settings).failure
    assert failure is not None
    again = run(failure.config, failure.operations, fault)
    assert again is not None
    assert str(again.broken) == str(failure.broken)


# The command line.


def test_the_options_make_the_window(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "trace.jsonl").write_text(mooncake_text(conversations(60, seed=5)))
    common = ["workload", "trace.jsonl", "--json", "out.json", "--page-size", "16", "--chunk", "256"]

    def served(*options: str) -> Any:
        assert main([*common, *options]) == 0
        return json.loads((tmp_path / "out.json").read_text())

    small = served("--pages", "260", "--pool", "window", "--window", "128", "--window-pages", "60")
    assert small["window_evicted"] > 0 < small["window_given_up"]
    assert small["peak_window_pages"] == 60
    told = capsys.readouterr().out
    assert f"{small['window_given_up'] + small['window_evicted']:,} window pages evicted" in told
    assert "; short of pages: " in told
    wide = served("--pages", "260", "--pool", "window")
    assert wide["window_given_up"] == 0  # nothing is ever behind 4,096 tokens
    paged = served("--pages", "260")
    assert (paged["window_given_up"], paged["peak_window_pages"]) == (0, 0)
    assert "window" not in capsys.readouterr().out.splitlines()[-2]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--window", "4096"], "--window needs --pool window"),
        (["--pool", "paged", "--window-pages", "50"], "--window-pages needs --pool window"),
        (["--pool", "window", "--window-pages", "5"], "window pages of 64; the window pool has 5"),
    ],
)
def test_window_options_that_make_no_sense_are_refused(
    options: list[str], said: str, tmp_path: Path, capsys: Any
) -> None:
    (tmp_path / "trace.jsonl").write_text(mooncake_text(conversations(20, seed=5)))
    assert main(["workload", str(tmp_path / "trace.jsonl"), *options]) == 2
    assert said in capsys.readouterr().err
