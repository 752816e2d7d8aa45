"""How a running daemon is observed: pages and probes over HTTP, the control socket, metrics that it
sends, and alerts.
"""
