"""Any policy, unchanged, inside a real SGLang: plugin, live snapshot, actuation, guard, and the tools around it."""
