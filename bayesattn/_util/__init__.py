"""Helpers that every room uses: checks of arguments, files, random keys, settings, text."""
