"""Reads text: what an evasive spelling stands for, sentences, windows, the strings of JSON."""
