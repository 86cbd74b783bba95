"""Sockets: addresses, TCP, TLS, WebSocket, PROXY protocol, accepting and admission. Used by every front-end."""
