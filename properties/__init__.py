"""The `.properties` file of the MultiLangDaemon -> immutable settings. Imports nothing of ours."""
