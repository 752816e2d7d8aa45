"""The wire client for hours against a server that does everything wrong."""
