"""The workload on generated traces: it reads nothing wrong, and serves them to the last token."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from .configuration import Configuration
from .configurations import CHOICES, configuration
from .reach import Reach
from .runner import Runner
from .soak import propose
from .subjects.kvcore import KvcoreEngine
from .touched import TouchedChecker
from .trace import MalformedTrace, Trace, TraceRequest, azure_text, generate_trace, mooncake_text, read_trace
from .workload import SPECULATION, DoesNotFit, WorkloadSettings, run_workload

FORMATS: dict[str, Callable[[Trace], str]] = {"jsonl": mooncake_text, "csv": azure_text}


# Reading a trace.


@pytest.mark.parametrize("suffix", FORMATS)
def test_a_written_trace_reads_as_it_was(tmp_path: Path, suffix: str) -> None:
    trace = generate_trace(50, seed=1, prompt=900)
    for name in (f"trace.{suffix}", "trace.txt"):  # by its suffix, and by its first line
        (tmp_path / name).write_text(FORMATS[suffix](trace))
        read = read_trace(tmp_path / name)
        assert read.whole
        for one, right in zip(read.requests, trace.requests, strict=True):
            hash_ids = right.hash_ids if suffix == "jsonl" else None
            assert one == TraceRequest(right.prompt_len, right.output_len, hash_ids, right.timestamp)


@pytest.mark.parametrize("suffix", FORMATS)
def test_a_limit_cuts_the_trace_and_says_so(tmp_path: Path, suffix: str) -> None:
    trace = generate_trace(5, seed=1)
    (tmp_path / f"trace.{suffix}").write_text(FORMATS[suffix](trace) + "\n")
    for limit in (1, 4, 5, 6):
        read = read_trace(tmp_path / f"trace.{suffix}", limit)
        assert len(read) == min(limit, 5)
        assert read.whole == (limit >= 5)


GOOD = '{"timestamp": 0, "input_length": 513, "output_length": 2, "hash_ids": [0, 1]}'
HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens"
ROW = "2023-11-16 18:17:03.9799600,4808,10"


@pytest.mark.parametrize(
    ("suffix", "lines", "said"),
    [
        ("jsonl", [GOOD, "{"], "line 2: no JSON"),
        ("jsonl", [GOOD, "[1]"], "line 2: no JSON object"),
        ("jsonl", ["", GOOD.replace("timestamp", "time")], "line 2: lacks 'timestamp'"),
        ("jsonl", [GOOD.replace("input_length", "in")], "line 1: lacks 'input_length'"),
        ("jsonl", [GOOD.replace("513", "-513")], "line 1: 'input_length' is -513"),
        ("jsonl", [GOOD.replace("513", "0")], "line 1: 'input_length' is 0"),
        ("jsonl", [GOOD.replace("513", "513.0")], "line 1: 'input_length' is 513.0"),
        ("jsonl", [GOOD.replace("513", "1e99")], "line 1: 'input_length' is 1e+99"),
        ("jsonl", [GOOD, GOOD.replace("2,", "true,")], "line 2: 'output_length' is True"),
        ("jsonl", [GOOD, GOOD.replace("2,", '"2",')], "line 2: 'output_length' is '2'"),
        ("jsonl", [GOOD, GOOD.replace("2,", f"{2**40},")], "line 2: 'output_length' is"),
        ("jsonl", [GOOD.replace("513", "512")], "line 1: 'hash_ids' has 2 entries; 512 tokens are 1 blocks of 512"),
        ("jsonl", [GOOD.replace("[0, 1]", "[0, 1.5]")], "line 1: 'hash_ids' has to be a list of integers"),
        ("jsonl", [GOOD.replace("[0, 1]", "[0, -1]")], "line 1: 'hash_ids' has to be a list of integers from 0"),
        ("jsonl", [GOOD.replace("[0, 1]", f"[0, {2**30}]")], "line 1: 'hash_ids' has to be a list of integers from 0"),
        ("jsonl", [GOOD.replace("[0, 1]", "2")], "line 1: 'hash_ids' has to be a list of integers"),
        ("jsonl", [GOOD.replace(": 0,", ": NaN,")], "line 1: 'timestamp' is nan"),
        ("jsonl", [], "holds no request"),
        ("csv", [], "holds no request"),
        ("csv", [HEADER], "holds no request"),
        ("csv", [ROW], "line 1: the header lacks 'TIMESTAMP'"),
        ("csv", ["TIMESTAMP,ContextTokens"], "line 1: the header lacks 'GeneratedTokens'"),
        ("csv", [HEADER, ROW, "2023-11-16 18:17:04,5"], "line 3: has 2 fields, the header has 3"),
        ("csv", [HEADER, ROW, ROW.replace(",10", ",-1")], "line 3: 'GeneratedTokens' is -1"),
        ("csv", [HEADER, ROW, ROW.replace(",10", ",")], "line 3: 'GeneratedTokens' is ''"),
        ("csv", [HEADER, ROW.replace("4808", "48.5")], "line 2: 'ContextTokens' is '48.5'"),
        ("csv", [HEADER, ROW.replace("4808", "0")], "line 2: 'ContextTokens' is 0"),
        ("csv", [HEADER, ROW.replace("2023-11-16", "yesterday")], "line 2: 'TIMESTAMP' is"),
        ("csv", [HEADER, ROW + '"'], "line 2: "),
        ("txt", ["", "hello"], "line 2: neither"),
    ],
)
def test_a_malformed_line_is_named(tmp_path: Path, suffix: str, lines: list[str], said: str) -> None:
    path = tmp_path / f"trace.{suffix}"
    path.write_text("\n".join(lines))
    with pytest.raises(MalformedTrace) as caught:
        read_trace(path)
    assert str(caught.value).startswith(said)


def test_what_is_no_text_or_no_file_is_malformed_too(tmp_path: Path) -> None:
    (tmp_path / "trace.csv").write_bytes(b"\xff\xfe\x00")
    for path in (tmp_path / "trace.csv", tmp_path / "missing.csv", tmp_path):
        with pytest.raises(MalformedTrace):
            read_trace(path)


# Serving one.


@pytest.mark.parametrize("page_size", [1, 64])
@pytest.mark.parametrize("spec", SPECULATION)
@pytest.mark.parametrize("suffix", FORMATS)
def test_every_token_gets_a_slot(tmp_path: Path, suffix: str, spec: str, page_size: int) -> None:
    (tmp_path / f"trace.{suffix}").write_text(FORMATS[suffix](generate_trace(60, seed=page_size)))
    trace = read_trace(tmp_path / f"trace.{suffix}")
    settings = WorkloadSettings(page_size=page_size, max_running=6, chunk=256, speculation=SPECULATION[spec])
    result = run_workload(trace, KvcoreEngine, settings)
    assert (result.verdict, result.failure, result.missing) == ("holds", None, [])
    assert (result.requests, result.prompt_tokens, result.output_tokens) == (
        60,
        trace.prompt_tokens,
        trace.output_tokens,
    )
    assert result.retractions == result.reach.states["resumed"] == result.reach.states["short of full"] > 0
    assert 0 < result.recomputed_tokens < trace.prompt_tokens
    assert result.peak_pages <= result.config.num_pages
    for name in ("extend", "release", "retract", "decode"):
        assert result.reach.operations[name]["changed"]
    if spec != "none":
        assert result.reach.states["stop inside the draft"]
        assert result.reach.operations["release_overallocated"]["changed"]
    for clause in ("KV-1", "KV-2", "KV-3", "KV-4", "KV-5", "KV-6", "KV-7", "KV-8", "KV-13"):
        assert result.reach.checks[clause]


def test_the_seed_decides_everything() -> None:
    trace = generate_trace(40, seed=2)
    runs = [run_workload(trace, KvcoreEngine, WorkloadSettings(seed=seed)).reach for seed in (1, 1, 2)]
    assert runs[0] == runs[1] != runs[2]


def test_a_default_pool_that_is_never_short_has_not_reached_what_it_is_for() -> None:
    trace = generate_trace(3, seed=0)
    result = run_workload(trace, KvcoreEngine, WorkloadSettings())
    assert (result.verdict, result.retractions) == ("not reached", 0)
    assert "nothing was retracted" in result.missing[0]
    cut = Trace(trace.requests, whole=False)
    assert run_workload(cut, KvcoreEngine, WorkloadSettings()).verdict == "holds"
    assert run_workload(trace, KvcoreEngine, WorkloadSettings(pages=500)).verdict == "holds"


def test_an_output_of_no_tokens_ends_with_the_prompt() -> None:
    trace = Trace((TraceRequest(100, 0), TraceRequest(1, 1), TraceRequest(64, 2)))
    for spec in SPECULATION.values():
        settings = WorkloadSettings(page_size=16, pages=9, speculation=spec)
        assert run_workload(trace, KvcoreEngine, settings).verdict == "holds"


def test_a_request_larger_than_the_pool_is_refused_up_front() -> None:
    trace = Trace((TraceRequest(10, 1), TraceRequest(1000, 24)))
    for spec, needed in (("none", 64), ("eagle", 66)):
        settings = WorkloadSettings(page_size=16, pages=needed - 1, speculation=SPECULATION[spec])
        with pytest.raises(DoesNotFit, match=f"request 2 of the trace has 1024 tokens and needs {needed} pages"):
            run_workload(trace, KvcoreEngine, settings)
        alone = WorkloadSettings(page_size=16, pages=needed, speculation=SPECULATION[spec])
        assert run_workload(trace, KvcoreEngine, alone).verdict == "holds"


def test_progress_counts_the_requests_that_finish() -> None:
    finished: list[int] = []
    run_workload(generate_trace(30, seed=0), KvcoreEngine, WorkloadSettings(), progress=finished.append)
    assert sum(finished) == 30


def test_the_checker_takes_what_the_soak_proposes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bad calls, zero-length members, shortages of rows: what no scheduler does."""
    monkeypatch.setattr("kvcore.stateful.touched.RECOUNT_EVERY", 50)
    config = Configuration(4, 24, 5, 30, speculation=SPECULATION["eagle"], checked=False)
    reach, random = Reach(), Random(0)
    runner = Runner(config, KvcoreEngine, reach, TouchedChecker)
    for _ in range(1500):
        runner.step(propose(runner.ledger, "engine", random))
    runner.finish()
    assert reach.operations["bad_call"]["refused"] > 30
    assert reach.states["short of rows"]


@pytest.mark.parametrize("seed", range(4))
def test_the_checker_takes_it_on_every_kind_of_configuration(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows of every kind, prefix caches, free groups, leases."""
    monkeypatch.setattr("kvcore.stateful.touched.RECOUNT_EVERY", 40)
    random = Random(seed)
    for _ in range(12):
        config = configuration("engine", *(random.randrange(CHOICES) for _ in range(3)))
        runner = Runner(config, KvcoreEngine, Reach(), TouchedChecker)
        for _ in range(120):
            runner.step(propose(runner.ledger, "engine", random))
        runner.finish()
