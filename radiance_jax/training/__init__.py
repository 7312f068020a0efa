"""Training drafters: answers of a target on disk, objectives, the loop, export. Imports models, never the engine's loop."""
