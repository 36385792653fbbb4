"""Helpers for the whole package: checks of arguments, files, random keys, settings, text."""
