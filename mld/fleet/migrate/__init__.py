"""From 2.x to 3.x, and from three tables to one."""
