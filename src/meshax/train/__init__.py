"""Training: what is kept between steps, and between runs."""
