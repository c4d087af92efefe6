"""From files of prompts and demonstrations to token ids."""
