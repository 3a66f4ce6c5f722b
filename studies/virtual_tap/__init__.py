"""What do mirrors of Open vSwitch cost the traffic that they copy?"""
