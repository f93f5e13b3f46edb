"""Properties of single operations: Hypothesis strategies, and every kernel against its reference.

    pytest --pyargs kvcore.properties

Imports run one way, from stateful through properties to the core, which knows nothing of the suite.
"""
