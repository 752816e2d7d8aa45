"""The election of the fleet's leader. Rules: coordination#leader-lock."""
