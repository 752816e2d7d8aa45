"""The process around a worker: signals, the service manager, the file read again, runs that end by themselves."""
