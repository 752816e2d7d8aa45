"""What every room uses: time, errors, positions, names of streams, waits, and the port to a stream."""
