"""The workload with a prefix cache: it hits what the hash ids promise, evicts what is in the way, and finds a cache
that is broken."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from .cli import main
from .configuration import Configuration
from .operations import Extend
from .replay import Replay, run
from .runner import Runner
from .scheduler import Scheduler, prompt_of
from .subjects.kvcore import KvcoreEngine
from .test_self_workload_faults import serve_to_the_end
from .touched import TouchedChecker
from .trace import BLOCK, Trace, TraceRequest, azure_text, generate_trace, mooncake_text
from .verdicts import Broken
from .workload import SPECULATION, WorkloadSettings, _only, configuration_for, run_workload


def conversations(count: int, seed: int, *, talks: int = 4, turn: int = 400) -> Trace:
    """Prompts that go on where an earlier one of the same conversation ended, all behind one system prompt."""
    random, lengths, requests = Random(seed), [0] * talks, []
    for number in range(count):
        talk = random.randrange(talks)
        lengths[talk] = 200 + (lengths[talk] + random.randrange(1, turn)) % (5 * BLOCK)
        blocks = range(-(-lengths[talk] // BLOCK))
        hash_ids = tuple(block if block == 0 else 100 * talk + block for block in blocks)
        requests.append(TraceRequest(lengths[talk], random.randrange(1, 60), hash_ids, 10.0 * number))
    return Trace(tuple(requests))


def promised(trace: Trace, page_size: int, *, bigram: bool) -> int:
    """Tokens that each request can hit when all before it are cached: counted on the trace, block by block."""
    total = 0
    for number, request in enumerate(trace.requests):
        longest = 0
        for earlier in trace.requests[:number]:
            blocks = 0
            for mine, theirs in zip(request.hash_ids or (), earlier.hash_ids or (), strict=False):
                if mine != theirs:
                    break
                blocks += 1
            longest = max(longest, min(blocks * BLOCK, request.prompt_len, earlier.prompt_len))
        # One token at least is computed; a bigram needs the token behind it.
        total += (min(longest, request.prompt_len - 1) - bigram) // page_size * page_size if longest else 0
    return total


@pytest.mark.parametrize("page_size", [1, 16, 64])
@pytest.mark.parametrize("spec", SPECULATION)
def test_it_hits_what_the_hash_ids_promise(spec: str, page_size: int) -> None:
    trace = conversations(40, seed=page_size)
    settings = WorkloadSettings(
        page_size=page_size, pages=100_000 // page_size, max_running=1, chunk=256, speculation=SPECULATION[spec]
    )
    result = run_workload(trace, KvcoreEngine, settings)
    assert (result.verdict, result.evicted_pages, result.retractions) == ("holds", 0, 0)
    assert result.hit_tokens == promised(trace, page_size, bigram=spec == "eagle") > 0
    assert (result.rehit_tokens, result.recomputed_tokens) == (0, 0)
    none = run_workload(trace, KvcoreEngine, replace(settings, prefix_cache="none"))
    assert (none.verdict, none.hit_tokens, none.evicted_pages) == ("holds", 0, 0)
    assert (none.prompt_tokens, none.output_tokens) == (result.prompt_tokens, result.output_tokens)


@pytest.mark.parametrize("eviction", ["lru", "lfu", "fifo"])
def test_a_small_pool_evicts_retracts_and_hits(eviction: str) -> None:
    trace = conversations(80, seed=5)
    settings = WorkloadSettings(page_size=16, pages=260, max_running=8, chunk=256, eviction=eviction)
    result = run_workload(trace, KvcoreEngine, settings)
    assert (result.verdict, result.failure) == ("holds", None)
    assert min(result.evicted_pages, result.retractions, result.rehit_tokens) > 0
    assert 0 < result.hit_tokens < promised(trace, 16, bigram=True)
    assert (result.prompt_tokens, result.output_tokens) == (trace.prompt_tokens, trace.output_tokens)
    assert result.reach.checks["KV-9"]
    assert result.reach.operations["checkpoint"]["changed"]


def test_what_a_resume_finds_is_not_computed_again() -> None:
    trace = conversations(80, seed=5)
    settings = WorkloadSettings(page_size=16, pages=260, max_running=8, chunk=256)
    runner = Runner(configuration_for(trace, settings), KvcoreEngine, checker=TouchedChecker)
    scheduler = Scheduler(trace, runner, chunk=256, seed=0)
    lost = again = 0
    longest: dict[int, int] = {}  # that each request ever had
    step = runner.step

    def watched(operation: Any) -> Any:
        nonlocal lost, again
        before = {number: held.committed for number, held in runner.ledger.live.items()}
        outcome = step(operation)
        for number in before.keys() - runner.ledger.live.keys():
            lost += before[number] * (operation.name == "retract")
        for number, held in runner.ledger.live.items():
            had = longest.get(number, 0)
            again += max(min(held.committed, had) - before.get(number, held.protected), 0)
            longest[number] = max(had, held.committed)
        return outcome

    runner.step = watched  # type: ignore[method-assign]
    scheduler.serve()
    assert 0 < scheduler.served.recomputed_tokens == again < lost


def test_a_chunk_is_hit_while_its_prompt_goes_on() -> None:
    request = TraceRequest(2000, 5, (0, 1, 2, 3))
    settings = WorkloadSettings(page_size=16, pages=400, max_running=2, chunk=256)
    result = run_workload(Trace((request, request), whole=False), KvcoreEngine, settings)
    # The second begins with what the eighth chunk of the first leaves of the budget; seven chunks are cached.
    assert (result.verdict, result.hit_tokens) == ("holds", (7 * 256 - 1) // 16 * 16)


def test_what_was_not_reached_is_told() -> None:
    def missing(trace: Trace, **options: Any) -> list[str]:
        found = run_workload(trace, KvcoreEngine, WorkloadSettings(**options))
        return [sentence.partition(":")[0] for sentence in found.missing]

    trace = generate_trace(4, seed=0)
    assert missing(trace) == ["nothing was retracted", "nothing was evicted", "nothing was hit"]
    assert missing(trace, prefix_cache="none") == ["nothing was retracted"]
    assert missing(trace, pages=500) == []
    plain = Trace(tuple(replace(request, hash_ids=None) for request in trace.requests))
    assert missing(plain) == ["nothing was retracted", "nothing was evicted"]


# Its operations as data.


def test_a_prompt_is_a_writer_for_each_block() -> None:
    assert prompt_of(TraceRequest(1100, 1, (7, 0, 9))) == ((512, -8), (1024, -1), (1100, -10))
    assert prompt_of(TraceRequest(1100, 1)) == ()


def test_a_workload_with_prompts_is_a_replay_file() -> None:
    trace = conversations(25, seed=2)
    settings = WorkloadSettings(page_size=16, pages=260, max_running=4, chunk=256)
    config = configuration_for(trace, settings)
    scheduler = Scheduler(trace, Runner(config, KvcoreEngine, checker=TouchedChecker), chunk=256, seed=0)
    scheduler.serve()
    replay = Replay.parse(Replay(config, tuple(scheduler.done)).text())
    assert replay.operations == tuple(scheduler.done)
    hits: list[int] = []
    assert run(config, replay.operations, lambda c: Counting(c, hits)) is None
    assert sum(hits) == scheduler.served.hit_tokens + scheduler.served.rehit_tokens > 0


class Counting(KvcoreEngine):
    """kvcore's allocator, which writes down what extends hit."""

    def __init__(self, config: Configuration, hits: list[int]) -> None:
        super().__init__(config)
        self.hits = hits

    def extend(self, requests: Any, seq_lens: Any, tokens: Any, salts: Any) -> Any:
        new = [number for number in requests if not self.row_of(number)]
        slots = super().extend(requests, seq_lens, tokens, salts)
        self.hits += [self.lengths(number)[0] for number in new]
        return slots


def test_a_shortened_extend_keeps_each_prompt_with_its_request() -> None:
    one, two = ((4, -1),), ((8, -2), (9, -3))
    extend = Extend((1, 2, 3), (5, 9, 7), prompts=(one, two, ()))
    assert _only(extend, {2, 3}) == Extend((2, 3), (9, 7), prompts=(two, ()))
    assert _only(extend, {4}) is None


# A cache that is broken, well into it.


class Fault(KvcoreEngine):
    """Sound up to the 20th call of the method that a fault overrides."""

    calls = 0

    def now(self) -> bool:
        self.calls += 1
        return self.calls == 20

    def cached(self) -> Any:
        """Pages that the cache holds."""
        assert self.manager.tree_cache is not None
        return next(node.pages for _, node in self.manager.tree_cache.nodes())


class FreesAProtectedPrefix(Fault):
    def release(self, requests: Any, checkpoint: bool, tokens: Any) -> None:
        super().release(requests, checkpoint, tokens)
        if self.now():
            self.manager.allocator.free_list.push(self.cached()[:1])


class HandsOutACachedPage(Fault):
    def extend(self, requests: Any, seq_lens: Any, tokens: Any, salts: Any) -> Any:
        free_list = self.manager.allocator.free_list
        if free_list.count and self.manager.tree_cache and self.manager.tree_cache.cached_pages:
            free_list.ids[free_list.head] = self.cached()[0]
        return super().extend(requests, seq_lens, tokens, salts)


class LosesALock(Fault):
    def extend(self, requests: Any, seq_lens: Any, tokens: Any, salts: Any) -> Any:
        slots = super().extend(requests, seq_lens, tokens, salts)
        cache = self.manager.tree_cache
        assert cache is not None
        held = cache._held[self.row_of(requests[-1])]
        if held is not None and self.now():
            cache._unlock(held)
        return slots


class PublishesNothing(Fault):
    def release(self, requests: Any, checkpoint: bool, tokens: Any) -> None:
        super().release(requests, checkpoint and not self.now(), tokens)


class HitsInAnotherOrder(Fault):
    """The row holds the right pages at wrong places."""

    def extend(self, requests: Any, seq_lens: Any, tokens: Any, salts: Any) -> Any:
        new = [number for number in requests if not self.row_of(number)]
        slots = super().extend(requests, seq_lens, tokens, salts)
        table, size = self.manager.req_to_token_pool.req_to_token.numpy(), self.config.page_size
        for number in new:
            if self.lengths(number)[0] >= 2 * size:
                row = self.row_of(number)
                table[row, : 2 * size] = [*table[row, size : 2 * size], *table[row, :size]]
        return slots


class EvictsWhatIsSeldomHit(Fault):
    def __init__(self, config: Configuration) -> None:
        super().__init__(replace(config, eviction="lfu"))


@pytest.mark.parametrize(
    ("fault", "clauses"),
    [
        (FreesAProtectedPrefix, ["KV-8"]),
        (HandsOutACachedPage, ["KV-1"]),
        (LosesALock, ["KV-6", "KV-9"]),
        (PublishesNothing, ["KV-8"]),
        (HitsInAnotherOrder, ["KV-9"]),
        (EvictsWhatIsSeldomHit, ["KV-1"]),
    ],
)
def test_a_broken_cache_is_found(fault: type[Fault], clauses: list[str]) -> None:
    trace = conversations(80, seed=5)
    settings = WorkloadSettings(page_size=16, pages=260, max_running=8, chunk=256)
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


def test_the_options_say_which_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "trace.jsonl").write_text(mooncake_text(conversations(60, seed=5)))
    (tmp_path / "trace.csv").write_text(azure_text(generate_trace(30, seed=1)))

    def served(name: str, *options: str) -> Any:
        assert main(["workload", name, "--json", "out.json", "--page-size", "16", "--pages", "260", *options]) == 0
        return json.loads((tmp_path / "out.json").read_text())

    lru, lfu = served("trace.jsonl"), served("trace.jsonl", "--eviction", "lfu")
    assert lru["hit_tokens"] > 0 < lfu["evicted_pages"]
    assert lru["hit_tokens"] != lfu["hit_tokens"]  # by age it is the same: whoever hits a path adds its newest leaf
    none = served("trace.jsonl", "--prefix-cache", "none")
    assert (none["hit_tokens"], none["rehit_tokens"], none["evicted_pages"]) == (0, 0, 0)
    assert served("trace.csv")["hit_tokens"] == 0


@pytest.mark.parametrize("wrong", [("--prefix-cache", "tree"), ("--eviction", "mru"), ("--prefix-cache",)])
def test_an_option_that_is_none_is_refused(wrong: tuple[str, ...]) -> None:
    with pytest.raises(SystemExit) as refused:
        main(["workload", "trace.jsonl", *wrong])
    assert refused.value.code == 2
