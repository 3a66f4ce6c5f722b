"""How long do round trips take while the path is loaded, and which queue keeps them short?"""
