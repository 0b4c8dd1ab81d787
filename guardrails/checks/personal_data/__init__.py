"""Personal data and secrets: patterns with check digits and context words.

Technical text is not personal data: versions, hashes, UUIDs, private network addresses and code do not match.
"""
