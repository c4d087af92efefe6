"""Layouts that fit a cluster, the fastest first (`slime plan --fit`), and a step that measures one (`slime probe`)."""
