"""What others learn of runs: alerts to people, log lines, spans. What runs do is in the other rooms."""
