"""Several workers of one properties file as one group: a supervisor, and what a worker of a group knows of it."""
