"""Databases that all workers share: SQLite in the data folder, or PostgreSQL by URL."""
