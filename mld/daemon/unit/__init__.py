"""Several workers of one properties file as one unit: a supervisor, and what a worker of a unit knows of it."""
