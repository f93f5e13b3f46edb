"""Properties of single operations: Hypothesis strategies, and every kernel against its reference.

    pytest --pyargs kvcore.properties
    from kvcore.properties import check_kernel      # for a kernel of your own

Imports run one way, from stateful through properties to the core, which knows nothing of the suite.
"""

from .check_kernel import KernelMismatch, check_kernel

__all__ = ["KernelMismatch", "check_kernel"]
