"""The process: wiring, a worker's life, signals, the service manager, several workers of one file."""
