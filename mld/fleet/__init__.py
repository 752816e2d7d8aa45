"""The fleet: leader, worker reports, lease assignment, migrations. Rules: docs/develop/rules/coordination.md."""
