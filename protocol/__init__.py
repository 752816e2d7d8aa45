"""The child protocol of the MultiLangDaemon, language-neutral and free of I/O. Imports nothing of ours."""
