"""The Spark session: modules that configure, start and watch it, and that hand records over to it."""
