"""The workload with HiSparse: each of three pools runs short, victims come back from the host, broken engines are
found."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from .admission import Request, Room
from .cli import main
from .hisparse_scheduler import scheduler_for
from .ledger import Ledger
from .operations import BindNewest, Commit, Decode, DeviceBuffer, DropBackup, Extend, PreallocHisparse, Retract, SwapOut
from .replay import run
from .runner import Runner
from .subjects.kvcore import KvcoreEngine
from .test_self_workload_cache import Fault
from .test_self_workload_faults import serve_to_the_end
from .touched import TouchedChecker
from .trace import Trace, TraceRequest, generate_trace, mooncake_text
from .verdicts import Broken
from .workload import SPECULATION, DoesNotFit, WorkloadSettings, configuration_for, run_workload

HISPARSE = WorkloadSettings(
    page_size=16, max_running=12, chunk=256, prefix_cache="none", pages=80, device_pages=60, host_pages=84,
    buffer_size=256,
)  # fmt: skip


@pytest.mark.parametrize(
    ("spec", "sizes"),
    [
        ("eagle", {}),
        ("dflash", {"pages": 100, "host_pages": 98}),
        ("none", {"pages": 90, "host_pages": 96, "buffer_size": 128}),
    ],
)
def test_every_token_gets_a_slot_and_each_pool_runs_short(spec: str, sizes: dict[str, Any]) -> None:
    trace = generate_trace(300, seed=3, output=100)
    result = run_workload(trace, KvcoreEngine, replace(HISPARSE, speculation=SPECULATION[spec], **sizes))
    assert (result.verdict, result.failure, result.missing) == ("holds", None, [])
    assert (result.prompt_tokens, result.output_tokens) == (trace.prompt_tokens, trace.output_tokens)
    assert min(result.short_of[pool] for pool in ("logical", "device", "host")) > 0
    assert result.retractions == result.reach.states["resumed"] + result.backup_resumes
    assert result.backups == result.backup_resumes + result.dropped_backups
    assert min(result.backup_resumes, result.dropped_backups) > 0
    assert (result.peak_device_pages, result.peak_host_pages) == (60, sizes.get("host_pages", 84))
    for clause in ("KV-1", "KV-3", "KV-5", "KV-6", "KV-7", "KV-8", "KV-10"):
        assert result.reach.checks[clause], clause


def test_what_each_request_goes_through() -> None:
    """Chunks, onto the host, a buffer, and behind each decode step the newest token, for the same batch."""
    trace = generate_trace(120, seed=3, output=100)
    runner = Runner(configuration_for(trace, HISPARSE), KvcoreEngine, checker=TouchedChecker)
    scheduler = scheduler_for(trace, runner, chunk=256, seed=0)
    scheduler.serve()
    done, refused = scheduler.done, sum(scheduler.served.short_of.values())
    steps = [i for i, one in enumerate(done) if isinstance(one, (Commit, Decode))]
    following = [done[i + 1] for i in steps if done[i + 1].name != "retract"]  # after a retraction a decode is refused
    assert len(steps) - len(following) <= refused
    assert {type(one) for one in following} == {BindNewest}
    victims = [one for one in done if isinstance(one, Retract)]
    assert 0.2 < sum(one.backup for one in victims) / len(victims) < 0.8
    for kind in (Extend, SwapOut, DeviceBuffer, PreallocHisparse, DropBackup):
        assert any(isinstance(one, kind) for one in done), kind


@pytest.mark.parametrize("buffer_size", [16, 2048])
@pytest.mark.parametrize("spec", ["eagle", "none"])
def test_the_least_pools_serve_everything(spec: str, buffer_size: int) -> None:
    """What is said to be enough is: one request after the other comes through."""
    trace = generate_trace(40, seed=8)
    settings = replace(
        HISPARSE, pages=400, buffer_size=buffer_size, speculation=SPECULATION[spec], device_pages=1, host_pages=1
    )

    def least(pool: str) -> int:
        with pytest.raises(DoesNotFit, match=f"{pool} pages of 16; the {pool} pool has 1$") as refused:
            configuration_for(trace, settings)
        return int(str(refused.value).split(" needs ")[1].split()[0])

    settings = replace(settings, device_pages=least("device"))
    settings = replace(settings, host_pages=least("host"))
    result = run_workload(trace, KvcoreEngine, settings)
    assert (result.verdict, result.requests) == ("holds", 40)


def test_the_default_pools() -> None:
    """A quarter of the logical pages on the device, but what the largest request needs; more on the host."""
    trace = generate_trace(40, seed=8)
    defaults = replace(HISPARSE, pages=None, device_pages=None, host_pages=None)
    config = configuration_for(trace, defaults)
    assert config.hisparse is not None
    assert config.num_pages == 4 * config.hisparse.device_pages < config.hisparse.host_pages
    small = configuration_for(trace, replace(defaults, pages=config.num_pages // 3)).hisparse
    assert small is not None
    assert small.device_pages == config.hisparse.device_pages
    never_short = run_workload(Trace((TraceRequest(100, 10), TraceRequest(90, 5))), KvcoreEngine, defaults)
    assert "no operation lacked device pages: the default device pool never ran short" in never_short.missing


def test_admission_looks_at_three_pools() -> None:
    """Room in two of them is not enough."""

    def fits(pages: int, device_pages: int, host_pages: int) -> list[bool]:
        sizes: dict[str, Any] = {"pages": pages, "device_pages": device_pages, "host_pages": host_pages}
        trace = Trace((TraceRequest(600, 1),))
        config = configuration_for(trace, replace(HISPARSE, speculation=None, **sizes))
        room = Room(Ledger(config), reserve=1, chunk=256)
        return [room.promise(Request(number, 600, 1)) for number in range(1, 4)]

    assert fits(1000, 1000, 1000) == [True, True, True]
    assert fits(76, 1000, 1000) == [True, True, False]  # 38 pages each
    assert fits(1000, 1000, 76) == [True, True, False]
    assert fits(1000, 55, 1000) == [True, True, False]  # a buffer of 17 pages, 21 more while one is computed
    assert fits(1000, 72, 1000) == [True, True, True]


def test_a_prompt_that_fills_the_device_is_computed_once() -> None:
    """Small prompts are admitted beside it; each that shares its last chunk would take its room."""
    trace = Trace((TraceRequest(900, 5), *[TraceRequest(100, 5)] * 3))
    result = run_workload(trace, KvcoreEngine, replace(HISPARSE, buffer_size=16, host_pages=200, device_pages=62))
    assert (result.verdict, result.retractions) == ("holds", 0)
    assert result.short_of["device"] > 0


# Engines that are broken, well into it.


class KeepsTheBuffersOfTheRetracted(Fault):
    """The logical and the host pages come back, the device pages do not."""

    def retract(self, requests: Any, backup: bool) -> None:
        assert self.manager.offload is not None
        device = self.manager.offload.device.free_list
        before = device.count
        super().retract(requests, backup)
        device.advance(device.count - before)


class LeavesTheMapStale(Fault):
    """The device pages are in the buffer or another's, and the map still has them."""

    def device_buffer(self, request: int) -> Any:
        assert self.manager.offload is not None
        there = self.manager.offload.map
        before = there.clone()
        slots = super().device_buffer(request)
        if self.calls > 19 or self.now():
            there.copy_(before)
        return slots


class MapsTwoPagesToOne(Fault):
    """Found before the request moves on, not only when everything is counted again."""

    def extend(self, requests: Any, seq_lens: Any, tokens: Any, salts: Any) -> Any:
        slots = super().extend(requests, seq_lens, tokens, salts)
        pages = slots // self.config.page_size
        if pages[-1] != pages[0] and (self.calls > 19 or self.now()):
            assert self.manager.offload is not None
            self.manager.offload.map[pages[-1]] = self.manager.offload.map[pages[0]]
        return slots


class FreesHostPagesTwice(Fault):
    def release(self, requests: Any, checkpoint: bool, tokens: Any) -> None:
        pages = self.held("host", requests[0])
        super().release(requests, checkpoint, tokens)
        if pages and self.now():
            assert self.manager.offload is not None
            host = self.manager.offload.host.free_list
            host.push(host.ids.new_tensor(pages[:1]))


class FreesWhatABackupKeeps(Fault):
    """The back-up is there, and its pages are free."""

    def retract(self, requests: Any, backup: bool) -> None:
        pages = self.held("host", requests[0])
        super().retract(requests, backup)
        if backup and pages:
            assert self.manager.offload is not None
            host = self.manager.offload.host.free_list
            host.push(host.ids.new_tensor(pages))


class HandsOutAHostPageTwice(Fault):
    def swap_out(self, request: int) -> Any:
        assert self.manager.offload is not None
        held = [number for number in self.reqs if number != request and self.row_of(number)]
        pages = [page for number in held for page in self.held("host", number)]
        host = self.manager.offload.host.free_list
        if pages and host.count and (self.calls > 19 or self.now()):
            host.ids[host.head] = pages[0]
        return super().swap_out(request)


class BindsElsewhere(Fault):
    """The newest token lies in another one's place."""

    def bind_newest(self, requests: Any, kept: bool) -> Any:
        slots = super().bind_newest(requests, kept)
        return slots + 1 if self.now() else slots


@pytest.mark.parametrize(
    ("fault", "clauses"),
    [
        (KeepsTheBuffersOfTheRetracted, ["KV-8"]),
        (LeavesTheMapStale, ["KV-10"]),
        (MapsTwoPagesToOne, ["KV-10", "KV-1"]),
        (FreesHostPagesTwice, ["KV-8"]),
        (FreesWhatABackupKeeps, ["KV-8"]),
        (HandsOutAHostPageTwice, ["KV-1"]),
        (BindsElsewhere, ["KV-5"]),
    ],
)
def test_a_broken_engine_is_found(fault: type[Fault], clauses: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvcore.stateful.touched.RECOUNT_EVERY", 200)
    trace = generate_trace(120, seed=3, output=100)
    runner = Runner(configuration_for(trace, HISPARSE), fault, checker=TouchedChecker)
    with pytest.raises(Broken) as found:
        serve_to_the_end(trace, runner)
    assert found.value.clause in clauses, found.value
    failure = run_workload(trace, fault, HISPARSE).failure
    assert failure is not None
    again = run(failure.config, failure.operations, fault)
    assert again is not None
    assert str(again.broken) == str(failure.broken)


def test_the_options_make_the_pools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "trace.jsonl").write_text(mooncake_text(generate_trace(120, seed=3, output=100)))
    words = "workload trace.jsonl --json out.json --page-size 16 --chunk 256 --max-running 12 --pool hisparse"
    sizes = "--pages 80 --device-pages 60 --host-pages 84 --buffer-size 256"
    assert main([*words.split(), *sizes.split()]) == 0
    result, told = json.loads((tmp_path / "out.json").read_text()), capsys.readouterr().out
    assert set(result["short_of"]) == {"logical", "device", "host"}
    assert f"{result['backups']} back-ups, {result['backup_resumes']} resumes from one" in told
    assert "at most 60 of 60 device and 84 of 84 host pages; short of pages: " in told
    for options, said in (
        ("--pool hisparse --prefix-cache radix", "--pool hisparse has no prefix cache"),
        ("--pool hisparse --window 4096", "--window needs --pool window"),
        ("--device-pages 60", "--device-pages needs --pool hisparse"),
        ("--pool window --buffer-size 60", "--buffer-size needs --pool hisparse"),
        ("--pool hisparse --host-pages 5", "host pages of 64; the host pool has 5"),
    ):
        assert main(["workload", "trace.jsonl", *options.split()]) == 2
        assert said in capsys.readouterr().err
