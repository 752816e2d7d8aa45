"""Turns the `.properties` file of the MultiLangDaemon into immutable settings (`loader.load`). Imports nothing else of
this project.
"""
