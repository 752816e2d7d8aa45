"""The Spark session: how it is started and watched, and how records get into it."""
