"""Runs on disk: settings, directory, journal, stored draws."""
