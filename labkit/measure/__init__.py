"""The measuring wing: build, load, observe, write rows. It imports neither pandas, scipy nor plotly."""
