"""Bench of scoring: batches, and exactly one answer per row whatever is killed (`python -m bench.score`)."""
