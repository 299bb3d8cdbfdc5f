"""A fleet on Kubernetes: the objects that the Helm chart renders, from the settings and without
Helm."""
