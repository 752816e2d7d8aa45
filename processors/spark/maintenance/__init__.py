"""Keeps what sinks have written in good order, beside the micro-batches and by hand."""
