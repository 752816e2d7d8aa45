"""The ground: time, errors, positions, names of streams, waits, and the port to a stream."""
