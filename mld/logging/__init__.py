"""The log: the form of its lines, their levels, and a queue before standard error, so that no task waits for it."""
