"""Requests to engines: what one is asked, which of several gets it, and the gate in front of them."""
