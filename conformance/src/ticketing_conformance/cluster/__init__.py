"""Clusters of real processes: starting, hurting and loading them, and judging what clients saw."""
