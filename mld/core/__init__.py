"""Code that all other packages use: time, errors, positions, names of streams, waits, and the port to a stream."""
