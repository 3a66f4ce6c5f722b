"""Intel's test plan for Open vSwitch: greatest rates with few lost frames, by switch configuration."""
