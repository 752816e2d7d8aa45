"""The fleet: leader, worker reports, lease assignment, migrations (coordination spec)."""
