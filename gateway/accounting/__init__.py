"""What requests cost, and limits on that: counts in windows of time, shared by workers and replicas."""
