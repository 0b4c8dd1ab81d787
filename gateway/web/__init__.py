"""HTTP on ASGI: routes and error handling, one request and response, deadlines, the HTTP/1.1 protocol."""
