"""The two migrations of a fleet: from 2.x to 3.x, and from three tables to one."""
