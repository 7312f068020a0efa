"""Benchmarks. Each is a door of its own (`python -m radiance_jax.bench`), takes the engine's flags, and writes one JSON
file with everything needed to judge its figures: machine, versions, command, configuration."""
