"""Text on both sides of the model: tokenizer, chat template, incremental detokeniser, stop strings. No jax here."""
