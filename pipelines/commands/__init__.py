"""The commands of the pipelines layer, one file each."""
