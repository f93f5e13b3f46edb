"""Sequences of operations against an allocator: the ledger, the runner, and what drives it.

kvcore check --subject my.package:factory
"""
