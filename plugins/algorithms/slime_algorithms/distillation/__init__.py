"""On-policy distillation: the objective `opd`, and the estimator `none`, which leaves rewards out."""
