"""Drafter networks: one backbone with switches, one file a family, and the registry that finds them by config.json."""
