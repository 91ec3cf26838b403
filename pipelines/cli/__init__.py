"""The commands of `nevermore`."""
