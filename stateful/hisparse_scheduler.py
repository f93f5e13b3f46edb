"""The scheduler with HiSparse: prompts are computed on the device, swapped out and admitted; decoding binds the newest.

    scheduler = scheduler_for(trace, runner, chunk=8192, seed=0)

Half of the victims leave a back-up on the host, by the seed, and resume from it: what had been generated beyond it is
decoded again. A shortage of the host pool frees nothing by a back-up, so there a victim leaves none; where one request
alone is left, or one that was retracted cannot come back, the back-up furthest back in the queue is dropped.
"""

from __future__ import annotations

from random import Random

from .admission import Request, Room
from .operations import BindNewest, DeviceBuffer, DropBackup, Operation, PreallocHisparse, Retract, SwapOut
from .runner import Runner
from .scheduler import Scheduler
from .trace import Trace
from .verdicts import Outcome


def scheduler_for(trace: Trace, runner: Runner, *, chunk: int, seed: int) -> Scheduler:
    """The scheduler that the runner's configuration needs."""
    cls = Scheduler if runner.config.hisparse is None else HisparseScheduler
    return cls(trace, runner, chunk=chunk, seed=seed)


class HisparseScheduler(Scheduler):
    """Of `prefilling`, those with a back-up are taken over from the host; of the others, who is computed is admitted
    at once or retracted, so that nobody waits on the device for its buffer."""

    def __init__(self, trace: Trace, runner: Runner, *, chunk: int, seed: int) -> None:
        super().__init__(trace, runner, chunk=chunk, seed=seed)
        self.coin = Random(seed)

    def _prefill(self) -> None:
        for one in [one for one in self.prefilling if self._backup(one)]:
            self._resume(one)
        super()._prefill()

    def _resume(self, one: Request) -> None:
        """From the host, with exactly the tokens that lie there."""
        number, hosted = one.number, self.ledger.get(one.number).hosted
        if self._perform_alone(one, PreallocHisparse(number, hosted)):
            one.computed, one.generated = hosted, hosted - one.prompt_len
            self.served.backup_resumes += 1
            if self._perform_alone(one, DeviceBuffer(number)):
                self._start_decoding(one)

    def _computed(self, ones: list[Request]) -> None:
        """Onto the host, then a buffer; one that has nothing to generate needs neither."""
        for one in ones:
            calls = (SwapOut(one.number), DeviceBuffer(one.number)) if one.left else ()
            # One that was retracted meanwhile, for another, performs nothing more.
            if all(self._perform_alone(one, call) for call in calls) and one in self.prefilling:
                self._start_decoding(one)

    def _start_decoding(self, one: Request) -> None:
        self.prefilling.remove(one)
        self.decoding.append(one)

    def _perform_alone(self, one: Request, operation: Operation) -> bool:
        """Whether it succeeded before the request itself had to go."""
        return bool(self._perform(lambda: [one] if one in self.prefilling else [], lambda _: operation))

    def _decoded(self, ones: list[Request]) -> None:
        """The batch object of the step serves as long as nobody is retracted."""

        def bind(there: list[Request]) -> BindNewest:
            requests = tuple([one.number for one in there])
            return BindNewest(requests, requests == self.batch)

        self._perform(lambda: [one for one in ones if one in self.decoding], bind)

    def _make_room(self, pool: str) -> None:
        """Those without a row go back first, and the others try again: beside the last chunk of a prompt that fills the
        device, another's first is too much, and what is computed of the prompt would be lost, time and again."""
        if self._take_promises_back():
            return
        alone = len(self.prefilling) + len(self.decoding) == 1
        if not (pool == "host" and alone and self._drop_backup(0)):
            super()._make_room(pool)

    def _retraction(self, victim: Request, pool: str) -> Retract:
        return Retract((victim.number,), pool != "host" and self.coin.random() < 0.5)

    def _fits(self, room: Room, one: Request) -> bool:
        """Where the host alone is in the way, back-ups behind it go."""
        fits = super()._fits(room, one)
        while not fits and room.lacks == ["host"] and (dropped := self._drop_backup(1)):
            room.host_free += dropped
            fits = not room.lacks
        return fits

    def _drop_backup(self, first: int) -> int:
        """Drop the last back-up in the queue, but none of those before number `first`. How many pages that were."""
        for one in reversed([one for i, one in enumerate(self.waiting) if i >= first and self._backup(one)]):
            pages = self._backup(one)
            self._step(DropBackup(one.number))
            self.served.dropped_backups += 1
            return pages
        return 0

    def _backup(self, one: Request) -> int:
        """Host pages that a retraction has kept for it."""
        return len(self.ledger.get(one.number).backup or ())

    def _step(self, operation: Operation) -> Outcome:
        outcome = super()._step(operation)
        served, pools = self.served, self.ledger.pools
        assert pools.device is not None
        assert pools.host is not None
        served.peak_device_pages = max(served.peak_device_pages, pools.device.num_pages - pools.device.free)
        served.peak_host_pages = max(served.peak_host_pages, pools.host.num_pages - pools.host.free)
        if isinstance(operation, Retract):
            served.backups += sum(self.ledger.get(number).backup is not None for number in operation.requests)
        return outcome
