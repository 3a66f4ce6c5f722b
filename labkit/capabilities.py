def capabilities(): return []
