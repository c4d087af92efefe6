"""Where the time of a run goes, as a trace that Perfetto opens."""
