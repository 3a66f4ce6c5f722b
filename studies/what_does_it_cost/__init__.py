"""The price list: what do everyday changes of a network cost?"""
