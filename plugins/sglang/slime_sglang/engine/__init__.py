"""What slime runs inside the processes of SGLang: weights with a receipt, the launcher of a server, seeded sampling."""
