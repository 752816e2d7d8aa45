"""The `.properties` file of the MultiLangDaemon -> immutable settings (`loader.load`). Imports nothing of ours."""
