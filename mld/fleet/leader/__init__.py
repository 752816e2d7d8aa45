"""Who leads the fleet. Rules: coordination#leader-lock."""
