"""SGLang servers as processes: how one starts and ends, what it leaves behind, and what it can take."""
