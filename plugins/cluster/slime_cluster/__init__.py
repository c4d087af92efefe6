"""Where slime's processes run: a Ray of its own or one that is there, and other hosts by ssh."""
