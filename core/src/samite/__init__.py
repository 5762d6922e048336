"""Samite."""
