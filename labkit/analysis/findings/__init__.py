"""What each experiment says about its rows."""
