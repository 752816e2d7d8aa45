"""Who leads the fleet. Rules: docs/rules/coordination.md#leader-lock."""
