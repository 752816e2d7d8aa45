"""The daemon's process: how a worker is put together, its life, signals, the service manager, and groups of workers."""
