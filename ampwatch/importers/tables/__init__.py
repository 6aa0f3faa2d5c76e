"""Structured logs: tables of named numbers, whose names are recognised or mapped."""
