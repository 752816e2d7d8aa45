"""The fleet: leader, worker reports, lease assignment, migrations. Rules: docs/rules/coordination.md."""
