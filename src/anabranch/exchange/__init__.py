"""What sites compute of an exchange: terms, chunks, sums, and served parts. Pure."""
