"""At both ends of a publish: what trainers and engines agree on. It imports none of the other rooms."""
