"""Model files: `.rad`, Hugging Face folders and GGUF behind one interface, read from their headers. No jax here."""
