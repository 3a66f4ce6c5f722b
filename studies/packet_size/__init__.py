"""What does a packet cost, fixed and by the byte?"""
