"""A node of a cluster, or a durable server alone, without I/O: the table behind the log."""
