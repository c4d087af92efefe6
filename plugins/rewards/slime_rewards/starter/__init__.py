"""First tasks for small models: word problems, countdown, text to reverse, and GSM8K."""
