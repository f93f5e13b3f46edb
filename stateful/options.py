"""What this run is about: which subject, on which device, how long, from which seed.

    from . import options

    def setup_method(self):
        self.options = options.current       # read at setup, not at import: by then the plugin has set it

Set by the pytest plugin, in every xdist worker too, and by the command line.
"""

from __future__ import annotations

from dataclasses import dataclass

DEVICES = ("cpu", "interpret", "cuda")
PROFILES = ("quick", "ci", "nightly")


@dataclass(frozen=True)
class Options:
    """What the command line chose.

    subject: a known name or pkg.mod:factory.
    device: cpu, interpret, or the one GPU of this process, cuda:0.
    profile: one of PROFILES, how long the run is.
    seed: where the draws of the seeded runs start.
    known_failures: the file of failures that are expected, if there is one.
    """

    subject: str = "kvcore"
    device: str = "cpu"
    profile: str = "quick"
    seed: int = 0
    known_failures: str | None = None


current = Options()
