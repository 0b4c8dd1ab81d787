"""What a request asks for: typed requests, and the reading and checking of every request field."""
