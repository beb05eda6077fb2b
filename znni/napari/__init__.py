"""A plugin for napari: plan and run a network over a layer, and see the output while it is made."""
