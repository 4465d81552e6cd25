"""Architectures as pairs of pure functions: ``init(rng_key)`` and ``apply(params, inputs)``."""
