"""Public calls: plan, infer, verify and view."""
