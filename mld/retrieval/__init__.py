"""Reading shards ahead of their consumers: where to start, pacing, buffer, polling and fan-out, pages, aggregates."""
