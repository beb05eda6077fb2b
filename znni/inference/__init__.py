"""The public calls: plan, infer, verify and view."""
