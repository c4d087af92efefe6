"""Requests to SGLang engines: to one, to prefill and decode engines in pairs, and to several."""
