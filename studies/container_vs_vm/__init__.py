"""Are containers faster than virtual machines, and is the comparison fair?"""
