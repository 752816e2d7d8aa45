"""What operators need besides the daemon, made from the properties file: policy, table, alerts, dashboard, unit."""
