"""Runs in virtual time on a described cluster."""
