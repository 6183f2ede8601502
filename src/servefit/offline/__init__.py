"""Static batches on vLLM's engine in this process, step by step: the paper's offline mode."""
