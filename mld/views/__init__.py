"""Views of the worker's metrics: what Prometheus, CloudWatch, the log and the service manager are given."""
