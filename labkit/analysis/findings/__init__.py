"""State what each experiment's rows show."""
