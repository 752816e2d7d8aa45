"""Deliberately broken variants of the daemon: the proof that the checkers of the simulation bite."""
