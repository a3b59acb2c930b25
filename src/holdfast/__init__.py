"""Holdfast: a durable runtime for AI agents."""
