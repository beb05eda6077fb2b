"""The stages that a block goes through, from reading to writing."""
